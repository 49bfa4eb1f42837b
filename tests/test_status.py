"""What a dead driver leaves: seen by `engine.status`, gone on with by `engine.resume`, brought together by `merge`."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from conftest import DEFAULTS, ROOT
from engine import local
from engine.local import Local
from engine.pool import packs
from storage import lock, rundir, runlog, seal
from test_runlog import HERE, a_config, interrupted
from test_sweep import GRID, home, running, start
from test_train import wait_for

SLOW = ("train.steps=400", "train.checkpoints=[]", "train.save_every=20", "train.log_every=5")


def module(name: str, *arguments, **options) -> subprocess.CompletedProcess:
    """`python -m name ARGUMENTS`, as make starts it."""
    line = [sys.executable, "-m", name, *map(str, arguments)]
    return subprocess.run(line, **{**DEFAULTS, "cwd": ROOT, **options})


def files(folder: Path) -> dict:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_status_and_resume_after_the_driver_died(command, tmp_path):
    sweep, runs = start(command, *GRID, *SLOW, "hydra.launcher.jobs=2"), tmp_path / "runs"
    begun = [home(tmp_path) / "baseline" / f"seed{k}" for k in (0, 1)]
    wait_for(lambda: all(list(folder.glob("checkpoint-*.pt")) and rundir.last_row(folder) for folder in begun))
    seen = module("engine.status", runs)
    assert seen.returncode == 0 and "smoke/grid-words (local): 0/4 finished, 2 running, 2 missing" in seen.stdout
    assert "left at the present speed" in seen.stdout and "/400" in seen.stdout
    sweep.kill()
    sweep.communicate()
    wait_for(lambda: not running(home(tmp_path)))
    assert "2 interrupted, 2 missing" in module("engine.status", runs).stdout
    done = module("engine.resume", runs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 done before, 4 to train" in done.stdout and done.stdout.count("bits per byte in") == 4
    assert (tmp_path / "results/smoke/grid-words/table.md").exists()
    assert all("starts over" not in (folder / "log.txt").read_text() for folder in begun)
    assert "4/4 finished; 100% of all steps" in module("engine.status", runs).stdout
    before = files(runs)
    again = module("engine.resume", runs)
    assert again.returncode == 0 and "4 done before, 0 to train" in again.stdout and files(runs) == before


def test_two_drivers_share_a_sweep_and_no_run_starts_twice(command, tmp_path):
    drivers = [start(command, *GRID, *SLOW, "train.steps=150", "hydra.launcher.jobs=1") for _ in range(2)]
    said = [driver.communicate(timeout=200)[0] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], said
    for folder in home(tmp_path).glob("*/seed*"):
        steps = [row["step"] for row in rundir.read_rows(folder) if "loss" in row]
        assert steps == sorted(set(steps)) and steps[-1] == 150


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nowhere",), "nowhere: no sweep */*; there: no sweep"),
        (("RUNS", "--sweep", "blgo"), "no sweep */blgo; there: smoke/grid-words"),
    ],
)
def test_a_sweep_that_is_not_there_is_one_line(arguments, expected, command, tmp_path):
    rundir.write_plan(Path(tmp_path, "runs/smoke/grid-words"), ["baseline/seed0"])
    for name in ("engine.status", "engine.resume"):
        done = module(name, *(tmp_path / "runs" if word == "RUNS" else word for word in arguments))
        assert done.returncode == 2 and expected in done.stderr and len(done.stderr.splitlines()) == 1


def ended_with(folder: Path, old: str, new: str) -> None:
    """Makes a finished run one that ended with other numbers."""
    summary = (folder / "summary.json").read_text().replace(old, new)
    (folder / "summary.json").write_text(summary)
    seal.seal(folder, summary.encode())


def test_runs_of_two_machines_come_together_or_are_refused_by_name(command, tmp_path):
    knobs = ("train.steps=6", "name=both", "seed=0")
    assert command(*knobs, "swap=baseline").returncode == 0
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "runs", other)
    assert command(*knobs, "swap=gelu", f"runs_dir={other}").returncode == 0
    mine, theirs = (root / "smoke/both-words" for root in (tmp_path / "runs", other))
    end = theirs / "baseline/seed0"
    ended_with(end, '"train_s": ', '"train_s": 1')  # another machine, another speed
    rundir.write_plan(theirs, ["baseline/seed0", "gelu/seed0", "gelu/seed1"])
    before = files(mine)
    done = module("storage.merge", other, tmp_path / "runs")
    assert done.returncode == 0 and "1 runs copied, 1 were here already" in done.stdout, done.stderr
    assert files(mine / "gelu") == files(theirs / "gelu")
    assert before.items() <= files(mine).items()
    assert rundir.load(mine / "plan.json")["runs"] == ["baseline/seed0", "gelu/seed0", "gelu/seed1"]
    ended_with(end, str(rundir.load(end / "summary.json")["final_bpb"]), "1.25")
    before = files(tmp_path / "runs")
    refused = module("storage.merge", other, tmp_path / "runs")
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1
    for words in ("nothing was copied: ", "baseline/seed0: other best_bpb, evals, final_bpb"):
        assert words in refused.stderr
    config = theirs / "gelu/seed0/config.yaml"
    config.write_text(config.read_text().replace("lr: 0.001", "lr: 0.5"))
    damaged = module("storage.merge", other, tmp_path / "runs").stderr
    assert "gelu/seed0: config.yaml is damaged" in damaged
    seal.seal(theirs / "gelu/seed0", (theirs / "gelu/seed0/summary.json").read_bytes())
    assert "train.lr 0.001 -> 0.5" in module("storage.merge", other, tmp_path / "runs").stderr
    assert files(tmp_path / "runs") == before


def elsewhere(folder: Path) -> Path:
    """A marker as a process of another host leaves it."""
    path = folder / lock.LOCK
    path.write_text(f"filelock/2\npid=77\nhost=elsewhere\nmode=lease\ntoken=ab\nduration={float(lock.LEASE)}\n")
    return path


def test_a_silent_holder_on_another_host_gives_way_and_one_that_beats_does_not(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lock, "LEASE", 2.0)
    monkeypatch.setattr(runlog, "LEASE", 2.0)
    interrupted(tmp_path)
    marker = elsewhere(tmp_path)
    os.utime(marker, (time.time() + 3600,) * 2)  # its clock is an hour ahead
    watch = lock.Watch(tmp_path)
    assert watch.alive() and rundir.read(tmp_path)["state"] == "interrupted"
    with runlog.RunLog(tmp_path, a_config()) as log:
        log.begin(HERE)
        assert log.restore()[0] == 30 and "waiting for a sign of life" in capsys.readouterr().err
        marker.unlink()
        elsewhere(tmp_path)  # slept for too long: another host has taken over
        with pytest.raises(runlog.UserError, match="another process has taken this run over"):
            log.log({"step": 35, "loss": 0.5})
        before = files(tmp_path)
        log.status("running", step=99)
    assert files(tmp_path) == before
    beats = "import os, sys, time\nfor _ in range(40): os.utime(sys.argv[1]); time.sleep(0.3)"
    with subprocess.Popen([sys.executable, "-c", beats, str(marker)]) as beating:
        with pytest.raises(runlog.UserError, match="already being run by pid 77 on host elsewhere"):
            runlog.RunLog(tmp_path, a_config()).__enter__()
        beating.kill()


def test_each_gpu_of_a_box_gets_a_task_and_none_stays_idle(freeze, monkeypatch):
    """GPUs that torch only claims to see: the children train on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    jobs = [
        freeze(f"swap={swap}", f"seed={seed}", "machine.precision=fp32")
        for swap in ("baseline", "gelu")
        for seed in range(3)
    ]
    engine = Local()
    assert engine.room(jobs[0], 0) == 4 and [len(pack) for pack in packs(jobs, engine)] == [2, 1, 2, 1]
    given = []

    def sleeper(folders, env):
        given.append(env["CUDA_VISIBLE_DEVICES"])
        return subprocess.Popen(["sleep", "60"])

    monkeypatch.setattr(local, "open_child", sleeper)
    tasks = engine.start(packs(jobs, engine))
    tasks[2].process.kill()
    tasks[2].process.wait()
    tasks += engine.start([jobs[:1]])
    assert given == ["0", "1", "2", "3", "2"]
    for task in tasks:
        task.process.kill()
        task.process.wait()
