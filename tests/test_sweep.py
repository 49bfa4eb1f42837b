"""A sweep through the real command: what is skipped, what a dead job costs, and what the end says."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from conftest import DEFAULTS
from engine.job import FAILED
from storage import frozen, rundir
from test_train import wait_for

FAST = ("train.steps=12", "train.checkpoints=[6]", "train.save_every=4")
SLOW = ("train.steps=4000", "train.checkpoints=[]", "train.save_every=10", "train.log_every=5")
GRID = ("-m", "swap=baseline,gelu", "seed=0,1", "name=grid")


def home(tmp_path, sweep="grid-words"):
    return tmp_path / "runs" / "smoke" / sweep


def start(command, *overrides, **options):
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": DEFAULTS["env"]}
    return subprocess.Popen(command.line(*overrides), **{**quiet, "cwd": DEFAULTS.get("cwd"), **options})


def running(folder):
    """Process ids of the jobs that train in or below a folder."""
    processes = psutil.process_iter(["cmdline"])
    return [p.pid for p in processes if any(word.startswith(str(folder)) for word in p.info["cmdline"] or [])]


def test_a_dry_run_lists_and_starts_nothing(command, tmp_path):
    done = command("sweeps=mlp_norm", "hydra.launcher.dry=true")
    assert done.returncode == 0 and "6 runs planned" in done.stdout
    assert all(f"layernorm{os.sep}seed{seed}" in done.stdout for seed in (0, 1))
    assert not list(tmp_path.rglob("config.yaml")) and not list(tmp_path.rglob("plan.json"))


def test_a_second_sweep_runs_nothing_and_a_lost_result_runs_alone(command, tmp_path):
    first = command(*GRID, *FAST)
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout.count("bits per byte in") == 4 and "too few seeds" in first.stdout
    assert {path.read_text() for path in home(tmp_path).rglob("log.txt")} == {""}  # no job had anything to complain of
    files = {path: path.stat().st_mtime_ns for path in home(tmp_path).rglob("*") if path.is_file()}
    second = command(*GRID, *FAST)
    assert second.returncode == 0 and "4 done before, 0 to train" in second.stdout
    assert files == {path: path.stat().st_mtime_ns for path in home(tmp_path).rglob("*") if path.is_file()}
    tables = sorted((tmp_path / "results").rglob("table.*"))
    before = [path.read_bytes() for path in tables]
    shutil.rmtree(home(tmp_path) / "gelu" / "seed1")
    third = command(*GRID, *FAST)
    assert third.returncode == 0 and third.stdout.count("bits per byte in") == 1
    assert "gelu/seed1: " in third.stdout and tables
    assert len(before) == len(tables)


def test_a_killed_job_is_named_and_the_others_go_on(command, tmp_path):
    sweep = start(command, *GRID, "train.steps=300", "train.save_every=10", "hydra.launcher.jobs=2")
    victim = home(tmp_path) / "gelu" / "seed0"
    wait_for(lambda: running(victim) and (victim / "metrics.jsonl").exists())
    os.kill(running(victim)[0], signal.SIGKILL)
    told, _ = sweep.communicate(timeout=200)
    assert sweep.returncode == FAILED, told
    assert "gelu/seed0: FAILED: killed by SIGKILL" in told and str(victim / "log.txt") in told
    assert "3/4" in told or "1/2" in told
    states = {path.parent.name: rundir.read(path)["state"] for path in (home(tmp_path) / "gelu").glob("seed*/")}
    assert rundir.read(victim)["state"] == "failed" and list(states.values()).count("failed") <= 2
    again = command(*GRID, "train.steps=300", "train.save_every=10", "hydra.launcher.jobs=2")
    assert again.returncode == 0 and "3 done before, 1 to train" in again.stdout


def test_ctrl_c_stops_every_job_with_a_resume_point(command, tmp_path):
    sweep = start(command, *GRID, *SLOW, "hydra.launcher.jobs=2")
    wait_for(lambda: len(list(home(tmp_path).rglob("metrics.jsonl"))) == 2)
    time.sleep(0.5)
    sweep.send_signal(signal.SIGINT)
    told, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 130 and "Traceback" not in told, told
    assert not running(home(tmp_path))
    assert {rundir.read(path.parent)["state"] for path in home(tmp_path).rglob("metrics.jsonl")} == {"interrupted"}
    assert len(list(home(tmp_path).rglob("checkpoint-*.pt"))) >= 2


def test_no_job_outlives_a_killed_driver(command, tmp_path):
    sweep = start(command, *GRID, *SLOW, "hydra.launcher.jobs=2")
    wait_for(lambda: len(list(home(tmp_path).rglob("metrics.jsonl"))) == 2)
    sweep.kill()
    sweep.communicate(timeout=60)
    wait_for(lambda: not running(home(tmp_path)))
    assert all(rundir.read(path.parent)["state"] == "interrupted" for path in home(tmp_path).rglob("metrics.jsonl"))


def test_axes_name_the_variant_and_survive_as_values(command, tmp_path):
    done = command("-m", "swap=baseline", "seed=0", "train.lr=1e-3,3e-4", "name=rates", "train.steps=1")
    assert done.returncode == 0, done.stdout + done.stderr
    names = sorted(
        path.name for path in home(tmp_path, "rates-words").iterdir() if path.is_dir() and path.name != "wandb"
    )
    assert names == ["baseline,train.lr=0.0003", "baseline,train.lr=0.001"]
    config = frozen.thaw(home(tmp_path, "rates-words") / names[0] / "seed0")
    assert config.train.lr == 3e-4 and config.run.axes == {"train.lr": 3e-4}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("sweeps=blog", "seed=1,1,2"), "baseline/seed1 is planned twice"),
        (("-m", "swap=baseline,gelu", "model.mlp=gelu"), "resolve to the same configuration"),
        (("-m", "swap=baseline,geluu"), "did you mean gelu?"),
        (("sweeps=blog", "train.steps=-1"), "train.steps=-1"),
        (("sweeps=blog", "seed=zero"), "seed=zero"),
        (("sweeps=blog", "hydra.launcher.jobs=-1"), "hydra.launcher.jobs=-1: must be a whole number"),
        (("sweeps=blog", "runs_dir=/proc/nowhere"), "/proc/nowhere"),
        (("sweeps=blog", "results_dir=/proc/nowhere"), "/proc/nowhere"),
        (("sweeps=blog", "hydra/launcher=basic"), "a sweep runs with hydra/launcher=local or slurm or ray"),
        (("-m", "swap=baseline", "eval.batch_size=8,16"), "resolve to the same configuration"),
    ],
)
def test_a_mistake_stops_the_sweep_before_the_first_job(overrides, expected, command, tmp_path):
    done = command(*overrides)
    assert done.returncode == 2 and expected in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob("config.yaml"))


def test_two_drivers_add_to_one_plan(tmp_path):
    program = "import sys; from storage import rundir; from pathlib import Path\n"
    program += "rundir.write_plan(Path(sys.argv[1]), [f'v/seed{sys.argv[2]}'])"
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(k)], cwd=Path(__file__).parents[1])
        for k in range(4)
    ]
    assert [child.wait() for child in children] == [0] * 4
    assert sorted(json.loads((tmp_path / "plan.json").read_text())["runs"]) == [f"v/seed{k}" for k in range(4)]


def test_a_conflict_with_earlier_runs_stops_the_sweep_before_the_first_job(command, tmp_path):
    assert command(*GRID, *FAST).returncode == 0
    done = command("-m", "swap=baseline,gelu,layernorm", "seed=0,1", "name=grid", *FAST, "train.lr=0.5")
    assert done.returncode == 2 and "train.lr 0.001 -> 0.5" in done.stderr
    assert not (home(tmp_path) / "layernorm").exists()


def test_every_run_keeps_its_frozen_configuration(command, tmp_path):
    """A job reads the file in its folder alone, so that an edit of conf/ in mid-sweep changes nothing."""
    assert command(*GRID, "train.steps=2").returncode == 0
    config = frozen.thaw(home(tmp_path) / "gelu" / "seed1")
    assert (config.model.mlp, config.seed, config.train.steps, config.run.variant) == ("gelu", 1, 2, "gelu")
    assert "${" not in (home(tmp_path) / "gelu" / "seed1" / "config.yaml").read_text()
    provenance = json.loads((home(tmp_path) / "gelu" / "seed1" / "provenance.json").read_text())
    assert provenance["code_sha256"] and "dirty" in provenance and provenance["threads"] == 1


def test_seeds_of_a_variant_are_composed_once_unless_something_follows_from_the_seed(tmp_path, text_file):
    import cli
    from conftest import places
    from engine.plan import Freezer

    composed = []

    def compose(overrides):
        composed.append(overrides)
        return cli.compose([*places(tmp_path, text_file), *overrides])

    for name, times in (("plain", 2), ("of${seed}", 4)):
        composed.clear()
        asked = [[f"swap={swap}", f"name={name}", f"seed={seed}"] for seed in (0, 3) for swap in ("baseline", "gelu")]
        plan = Freezer().plan(compose, asked, [])
        assert len(composed) == times
        alone = [Freezer().freeze(compose(overrides)) for overrides in asked]
        assert [job.folder for job in plan] == [job.folder for job in alone]
        assert [job.config for job in plan] == [job.config for job in alone]
