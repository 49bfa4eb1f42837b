"""One run, through the real command: what it leaves, how it stops, and that a killed one ends the same."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch

from conftest import DEFAULTS, NEEDS, SWAPS
from engine.job import DIVERGED, attempt
from storage import frozen, rundir
from text import corpus
from training.loop import run


def folder(tmp_path, swap="baseline", seed=0, sweep="scratch-words"):
    return tmp_path / "runs" / "smoke" / sweep / swap / f"seed{seed}"


def weights(where):
    return torch.load(where / "model.pt", weights_only=True)


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def test_a_run_leaves_its_folder(command, tmp_path):
    done = command("swap=gelu", "seed=1", "train.steps=7")
    assert done.returncode == 0, done.stderr
    where = folder(tmp_path, "gelu", 1)
    summary = json.loads((where / "summary.json").read_text())
    assert [step for step, _ in summary["evals"]] == [0, 7]
    assert summary["final_bpb"] == summary["evals"][-1][1] < summary["evals"][0][1]
    assert f"{summary['final_bpb']:.3f}" in done.stdout
    assert not list(where.glob("checkpoint*")) and not (where / ".lock").exists()
    written = {path.name: path.stat().st_mtime_ns for path in where.iterdir()}
    again = command("swap=gelu", "seed=1", "train.steps=7")
    assert again.returncode == 0 and written == {path.name: path.stat().st_mtime_ns for path in where.iterdir()}


def test_another_configuration_in_the_same_place_is_refused_by_key(command, tmp_path):
    assert command("train.steps=3").returncode == 0
    refused = command("train.steps=3", "train.lr=0.01")
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1
    assert "train.lr 0.001 -> 0.01" in refused.stderr and "train.steps" not in refused.stderr
    free = command("train.steps=3", "machine.threads=2", "train.log_every=2", "wandb.project=other")
    assert free.returncode == 0


def test_steps_zero_evaluates_once(command, tmp_path):
    assert command("train.steps=0").returncode == 0
    assert [step for step, _ in rundir.read(folder(tmp_path))["summary"]["evals"]] == [0]


class Cut(Exception):
    pass


@pytest.mark.parametrize("swap", SWAPS)
def test_cut_and_resumed_equals_never_stopped(swap, freeze):
    """An error behind a resume point, dropout on: the run that goes on ends with the same weights and the same rows."""
    needs = NEEDS.get(swap, [])
    job = freeze(f"swap={swap}", *needs, "train.steps=12", "train.save_every=5", "model.dropout=0.2")

    def cut(row):
        if row["step"] == 8:
            raise Cut

    with pytest.raises(Cut):
        run(job.config, job.folder, cut)
    assert len(list(job.folder.glob("checkpoint-*.pt"))) == 1
    whole = job.folder.parent / "whole"
    run(job.config, job.folder), run(job.config, whole)
    mine, never_stopped = weights(job.folder), weights(whole)
    assert all(torch.equal(mine[name], never_stopped[name]) for name in never_stopped)
    rows = [[untimed(row) for row in rundir.read_rows(f)] for f in (job.folder, whole)]
    assert rows[0] == rows[1] and rows[0][-1]["step"] == 12


@pytest.mark.parametrize("swap", ["baseline", "untied", "attention_residuals"])
def test_killed_and_resumed_equals_never_stopped(swap, command, tmp_path):
    """kill -9 in mid-run, dropout on: the same command again ends with the same weights and the same rows."""
    knobs = [f"swap={swap}", "train.steps=60", "train.save_every=7", "model.dropout=0.2", "machine.threads=1"]
    victim = subprocess.Popen(command.line(*knobs), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    where = folder(tmp_path, swap)
    wait_for(lambda: len(list(where.glob("checkpoint-*.pt"))) >= 2)
    victim.kill()
    victim.wait()
    assert rundir.read(where)["state"] == "interrupted"
    assert command(*knobs).returncode == 0
    whole = command(*knobs, "name=whole")
    assert whole.returncode == 0, whole.stderr
    other = folder(tmp_path, swap, sweep="whole-words")
    mine, never_stopped = weights(where), weights(other)
    assert all(torch.equal(mine[name], never_stopped[name]) for name in never_stopped)
    rows = [[untimed(row) for row in rundir.read_rows(f)] for f in (where, other)]
    assert rows[0] == rows[1]


def untimed(row):
    return {key: value for key, value in row.items() if key != "tokens_per_s"}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_asked_to_stop_saves_and_says_so(number, code, command, tmp_path):
    child = subprocess.Popen(
        command.line("train.steps=100000", "train.save_every=100000"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    where = folder(tmp_path)
    wait_for(lambda: (where / "metrics.jsonl").exists() and '"loss"' in (where / "metrics.jsonl").read_text())
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == code and b"Traceback" not in errors
    assert rundir.read(where)["state"] == "interrupted"
    assert len(list(where.glob("checkpoint-*.pt"))) == 1


def test_three_at_once_one_runs(command, tmp_path):
    started = [
        subprocess.Popen(command.line("train.steps=400"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    ended = [(child.communicate(timeout=120)[1], child.returncode) for child in started]
    codes = sorted(code for _, code in ended)
    assert codes == [0, 2, 2] or codes == [0, 0, 2] or codes == [0, 0, 0]  # a late starter may find it finished
    assert all("already being run by" in text for text, code in ended if code)
    steps = [row["step"] for row in rundir.read_rows(folder(tmp_path)) if "loss" in row]
    assert steps == sorted(set(steps)) and steps[-1] == 400


def test_a_run_that_has_hardly_learned_has_not_diverged(command, tmp_path):
    assert command("train.lr=1e-7", "train.steps=3").returncode == 0


def test_a_half_done_run_goes_on_in_the_precision_it_began_with(command, tmp_path):
    knobs = ["train.steps=100000", "train.save_every=1", "machine.precision=bf16"]
    child = subprocess.Popen(command.line(*knobs), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: list(folder(tmp_path).glob("checkpoint-*.pt")))
    child.kill()
    child.wait()
    refused = command(*knobs[:2], "machine.precision=fp32")
    assert refused.returncode == 2 and "machine.precision bf16 -> fp32" in refused.stderr


def test_a_resume_point_of_another_run_is_not_taken(command, tmp_path):
    knobs = ["train.steps=100000", "train.save_every=1"]
    for seed in (0, 1):
        child = subprocess.Popen(command.line(*knobs, f"seed={seed}"), stdout=subprocess.DEVNULL)
        wait_for(lambda seed=seed: list(folder(tmp_path, seed=seed).glob("checkpoint-*.pt")))
        child.kill()
        child.wait()
    mine, other = folder(tmp_path, seed=0), folder(tmp_path, seed=1)
    for path in mine.glob("checkpoint-*.pt"):
        path.write_bytes(max(other.glob("checkpoint-*.pt")).read_bytes())
    child = subprocess.Popen(command.line(*knobs), stderr=subprocess.PIPE, text=True)
    assert "of another run" in child.stderr.readline()
    child.kill()


def test_divergence_is_an_outcome_with_a_name(command, tmp_path):
    done = command("train.lr=1e3", "train.grad_clip=1e9", "model.norm_eps=1e-30")
    where = folder(tmp_path)
    assert done.returncode == DIVERGED and rundir.read(where)["state"] == "diverged"
    assert "DIVERGED" in done.stdout and "Traceback" not in done.stderr
    assert command("train.lr=1e3", "train.grad_clip=1e9", "model.norm_eps=1e-30").returncode == DIVERGED


def test_batches_are_the_same_for_every_variant_and_evaluation_interval(freeze):
    seen = set()
    for swap in [name for name in SWAPS if name not in ("bpe", "no_dropout")]:  # other symbols; at another scale
        config = freeze(f"swap={swap}", *NEEDS.get(swap, []), "train.checkpoints=[1,2,3]").config
        text = corpus.load(config.text)
        draws = [corpus.batch(text.train, config.seed, step, 4, config.model.context)[0] for step in range(5)]
        seen.add(hash(torch.stack(draws).numpy().tobytes()))
    assert len(seen) == 1


def test_evaluating_more_often_changes_nothing(command, tmp_path):
    for name, checkpoints in (("rare", "[]"), ("often", "[1,2,3,4,5,6,7,8,9]")):
        command(f"name={name}", "train.steps=10", "model.dropout=0.3", f"train.checkpoints={checkpoints}")
    rare, often = (weights(folder(tmp_path, sweep=f"{name}-words")) for name in ("rare", "often"))
    assert all(torch.equal(rare[name], often[name]) for name in rare)


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        ("model.mlp=swigluu", "did you mean swiglu?"),
        ("+model.typo=3", "model.typo: unknown"),
        ("sweep=blog", "did you mean sweeps?"),
        ("sweeps=blgo", "did you mean blog?"),
        ("swap=geluu", "did you mean gelu?"),
        ("swap=null", "swap, scale, text, family, sweeps take a name"),
        ("train.lr=fast", "train.lr=fast"),
        ("text.kind=word", "char, byte, bpe"),
        ("machine.precision=fp8", "auto, fp32, bf16"),
        ("model.n_layer=0", "at least 1"),
        ("train.optimizer=sgdd", "Allowed: adamw"),
        ("train.schedule=step", "Allowed: constant, cosine"),
        ("train.horizon=30", "train.horizon=30: train.schedule=constant does not read it"),
        ("swap=cosine_cut train.steps=2000", "train.horizon=1600: must be at least train.steps=2000"),
        ("text.path=/nowhere", "/nowhere"),
        ("machine.device=cuda:77", "machine.device=cuda:77"),
        ("model.mlp_width=500", "non-embedding parameters against the baseline's"),
        ("seed=[", "seed="),
        ("model.context=100000", "model.context=100000"),
        ("text.path=/nowhere model.mlp=swigluu", "did you mean swiglu?"),
        ("swap=local_global_5_1", "model.windows=SSSSSL"),
        ("model.n_kv_head=3", "model.n_kv_head=3: must divide model.n_head=4. Allowed: 1, 2, 4"),
        ("swap=learned eval.context=64", "eval.context=64: model.position=learned"),
    ],
)
def test_a_mistake_is_one_line_before_any_work(mistake, expected, command, tmp_path):
    done = command(*mistake.split())
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1 and expected in done.stderr
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_a_text_that_changed_since_freezing_is_refused(command, tmp_path, text_file):
    mine = tmp_path / "mine.txt"
    mine.write_text(text_file.read_text())
    assert command(f"text.path={mine}", "train.steps=2").returncode == 0
    mine.write_text(text_file.read_text() + "more of it")
    changed = command(f"text.path={mine}", "train.steps=2")
    assert changed.returncode == 2 and "run.text_sha256" in changed.stderr


POST = """
from train import train
s = train("GELU MLP, 4D wide s1", kind="char", steps=6, dropout=0.2, checkpoints=[2, 4, 6], seed=1, mlp="gelu",
          norm="layer", scale="smoke", path={path!r}, runs_dir={runs!r}, mode="disabled")
"""


def test_the_posts_own_call_prints_its_line(tmp_path, text_file):
    from conftest import ROOT

    program = POST.format(path=str(text_file), runs=str(tmp_path / "runs"))
    options = {**DEFAULTS, "env": {**DEFAULTS["env"], "PYTHONPATH": str(ROOT)}, "cwd": tmp_path}
    done = [subprocess.run([sys.executable, "-c", program], **options) for _ in range(2)]
    assert done[0].returncode == 0, done[0].stderr
    assert done[0].stdout.startswith("GELU MLP, 4D wide s1: 2: ") and " / 4: " in done[0].stdout
    assert done[0].stdout.rstrip().endswith("passes)")
    assert done[0].stdout == done[1].stdout
    config = frozen.thaw(next((tmp_path / "runs").rglob("config.yaml")).parent)
    assert (config.model.mlp, config.model.norm, config.model.dropout, config.seed) == ("gelu", "layernorm", 0.2, 1)


def test_runs_in_one_process_leave_no_tensors_behind(freeze):
    import gc

    job = freeze("train.steps=5")
    counts = []
    for seed in range(4):
        job.config.seed = seed
        assert attempt([(job.config, job.folder.parent / f"s{seed}", lambda row: None)]) == 0
        gc.collect()
        counts.append(sum(type(o) in (torch.Tensor, torch.nn.Parameter) for o in gc.get_objects()))
    assert counts[-1] <= counts[1]
