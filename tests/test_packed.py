"""Seeds as one stacked model: equal to each seed alone, and as separate in their folders, faults and ends."""

import json
import os
import signal

import pytest
import torch

from analysis import stats
from config import MachineConfig, Precision
from conftest import DEVICE
from engine.job import DIVERGED, OK, attempt
from engine.local import Local
from engine.pool import packs
from storage import rundir
from test_sweep import home, running, start
from test_train import wait_for, weights
from text import corpus
from training.learner import Learner
from training.machine import settle
from training.packed import Pack

PACK = ("-m", "swap=baseline", "seed=0,1,2", "name=pack", "machine.pack=3", f"machine.device={DEVICE}")
ALONE = ("-m", "swap=baseline", "seed=0,1,2", "name=alone", "machine.pack=1", f"machine.device={DEVICE}")
EXACT = ("machine.precision=fp32", "train.steps=30", "train.save_every=10", "train.log_every=1")


def learners(freeze, *overrides, seeds=3):
    configs = [freeze(f"seed={seed}", *overrides).config for seed in range(seeds)]
    text = corpus.load(configs[0].text)
    machine = settle(MachineConfig(device=DEVICE, precision=Precision.fp32, compile=configs[0].machine.compile))
    return Pack(configs, machine, text), [Learner([config], machine, text) for config in configs]


def agree(mine: dict, other: dict, tolerance: float) -> bool:
    return all(torch.allclose(mine[name], other[name], rtol=0, atol=tolerance) for name in other)


def test_a_packed_step_has_the_gradients_of_each_seed_alone(freeze):
    """Loss, gradient norm and each weight after one update of plain descent, whose step is the gradient."""
    pack, alone = learners(freeze, "train.grad_clip=0.5")
    for learner in (pack, *alone):
        learner.optimizer = torch.optim.SGD([p for g in learner.optimizer.param_groups for p in g["params"]], lr=1.0)
    together = pack.update(0)
    for seed, learner in enumerate(alone):
        (row,) = learner.update(0)
        assert all(float(together[seed][key]) == pytest.approx(float(row[key]), rel=1e-5) for key in row)
        assert agree(pack.weights(seed), learner.weights(0), 1e-5)
    assert len({float(row["grad_norm"]) for row in together}) == 3


@pytest.mark.parametrize(("swap", "compiled"), [("baseline", False), ("baseline", True), ("moe_biasfree", False)])
def test_packed_training_equals_each_seed_alone(freeze, swap, compiled):
    """A router's bias, which no gradient moves, included."""
    pack, alone = learners(freeze, f"swap={swap}", f"machine.compile={compiled}", seeds=2)
    for step in range(5):
        pack.update(step)
        [learner.update(step) for learner in alone]
    nats = pack.dev_nats()
    for seed, learner in enumerate(alone):
        assert agree(pack.weights(seed), learner.weights(0), 1e-4)
        assert nats[seed] == pytest.approx(learner.dev_nats()[0], rel=1e-5)


def test_seeds_draw_masks_of_their_own(freeze):
    """Twice the same seed, packed: equal without dropout, apart with it, and still equal in evaluation."""
    for dropout, same in ((0.0, True), (0.3, False)):
        config = freeze(f"model.dropout={dropout}").config
        text = corpus.load(config.text)
        pack = Pack([config, config], settle(MachineConfig(device=DEVICE, precision=Precision.fp32)), text)
        assert pack.dev_nats()[0] == pytest.approx(pack.dev_nats()[1], rel=1e-6)
        first, second = pack.update(0)
        assert (float(first["loss"]) == pytest.approx(float(second["loss"]), rel=1e-5)) == same


def test_a_packed_sweep_equals_one_of_single_runs(command, tmp_path):
    """One folder per seed, the same files and steps in it, and numbers equal to 1e-4."""
    for grid in (PACK, ALONE):
        done = command(*grid, *EXACT)
        assert done.returncode == OK, done.stdout + done.stderr
        assert done.stdout.count("bits per byte in") == 3
    for folder in home(tmp_path, "alone-words").glob("*/seed*"):
        twin = home(tmp_path, "pack-words") / folder.parent.name / folder.name
        assert {path.name for path in twin.iterdir()} >= {path.name for path in folder.iterdir()} - {"log.txt"}
        rows, others = rundir.read_rows(folder), rundir.read_rows(twin)
        assert [row.keys() for row in rows] == [row.keys() for row in others]
        for row, other in zip(rows, others, strict=True):
            same = [key for key in row if key != "tokens_per_s"]
            assert [row[key] for key in same] == pytest.approx([other[key] for key in same], rel=1e-4)


def test_a_pack_killed_between_two_saves_goes_on(command, tmp_path, freeze):
    """One seed a resume point behind the others, as a kill in the middle of saving leaves it; one finished alone."""
    slow = (*PACK, "machine.precision=fp32", "train.steps=200", "train.save_every=10")
    sweep = start(command, *slow, "train.checkpoints=[]")
    folders = [home(tmp_path, "pack-words") / "baseline" / f"seed{seed}" for seed in range(3)]
    wait_for(lambda: len(list(folders[2].glob("checkpoint-*.pt"))) == 2)
    os.kill(running(folders[0])[0], signal.SIGKILL)
    told, _ = sweep.communicate(timeout=60)
    assert told.count("FAILED: killed by SIGKILL") == 3
    newest = max(folders[1].glob("checkpoint-*.pt"), key=lambda path: int(path.stem.split("-")[1]))
    newest.unlink()
    again = command(*slow, "train.checkpoints=[]")
    assert again.returncode == OK, again.stdout
    whole = command(*slow, "train.checkpoints=[]", "name=whole", "machine.pack=1")
    assert whole.returncode == OK
    for folder in folders:
        twin = home(tmp_path, "whole-words") / "baseline" / folder.name
        steps = [row["step"] for row in rundir.read_rows(folder) if "loss" in row]
        assert steps == sorted(set(steps)) and steps[-1] == 200
        assert agree(weights(folder), weights(twin), 2e-2)


def test_a_diverged_seed_does_not_touch_its_neighbours(freeze, monkeypatch):
    """One seed's weights turn into not-a-numbers in mid-run: it ends so, the others as if nothing had been."""
    runs = {
        name: [(job.config, job.folder, lambda row: None) for job in sick_or_well(freeze, name)]
        for name in ("well", "sick")
    }
    assert attempt(runs["well"]) == OK
    update = Pack.update

    def poisoned(pack, step):
        if step == 10:
            next(iter(pack.stacked.values())).data[1] = float("nan")
        return update(pack, step)

    monkeypatch.setattr(Pack, "update", poisoned)
    assert attempt(runs["sick"]) == DIVERGED
    folders = {name: [folder for _, folder, _ in found] for name, found in runs.items()}
    assert [rundir.read(folder)["state"] for folder in folders["sick"]] == ["finished", "diverged", "finished"]
    for seed in (0, 2):
        assert agree(weights(folders["sick"][seed]), weights(folders["well"][seed]), 1e-6)
    assert json.loads((folders["sick"][1] / "summary.json").read_text())["final_bpb"] is None


def sick_or_well(freeze, name):
    return [freeze(f"seed={seed}", f"name={name}", "machine.precision=fp32", "train.steps=20") for seed in range(3)]


def test_who_trains_together(freeze):
    """Seeds of one variant, at most as many as asked for; nothing together on a CPU unless asked."""
    jobs = [freeze(f"swap={swap}", f"seed={seed}") for swap in ("baseline", "gelu") for seed in range(3)]
    assert [len(pack) for pack in packs(jobs, Local())] == [1] * 6
    for job in jobs:
        job.config.machine.pack = 2
    found = packs(jobs, Local())
    assert [len(pack) for pack in found] == [2, 1, 2, 1]
    assert all(len({job.config.run.variant for job in pack}) == 1 for pack in found)


def test_with_dropout_packed_and_alone_are_not_distinguishable(freeze):
    """Other masks, the same distribution: over 8 seeds the verdict of the study itself says so."""
    seeds, knobs = 8, ("model.dropout=0.2", "text.dev_bytes=2000")
    pack, alone = learners(freeze, *knobs, seeds=seeds)
    for step in range(40):
        pack.update(step)
        [learner.update(step) for learner in alone]
    packed, single = pack.dev_nats(), [learner.dev_nats()[0] for learner in alone]
    difference = stats.paired(packed, single)
    assert difference.sd > 0 and stats.verdict(difference, difference.p) == stats.SAME
    assert abs(difference.mean) < stats.spread(single).sd
