"""Sweeps on a real Slurm of one node. scripts/slurm_here.sh installs and starts it; without it these tests skip."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys

import pytest

from conftest import DEFAULTS, ROOT
from storage import rundir
from test_sweep import home, start
from test_train import wait_for, weights

MISSING = [name for name in ("slurmctld", "slurmd", "sbatch", "munged") if not shutil.which(name)]
MISSING += [] if importlib.util.find_spec("submitit") else ["submitit"]
MISSING += [] if os.geteuid() == 0 else ["root"]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"no Slurm here, for want of {', '.join(MISSING)}: docs/slurm.md"),
    pytest.mark.xdist_group("slurm"),  # one worker, one Slurm
]

ON_SLURM = ("hydra/launcher=slurm", "hydra.launcher.mem_gb=1")
LONG = ("train.steps=100000", "train.checkpoints=[]", "train.save_every=100000", "train.log_every=5")


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """The environment in which commands meet the Slurm of these tests."""
    folder = tmp_path_factory.mktemp("slurm")
    script = str(ROOT / "scripts/slurm_here.sh")
    up = subprocess.run([script, "start", str(folder), "2"], capture_output=True, text=True)
    assert up.returncode == 0, up.stdout + up.stderr
    yield {**DEFAULTS["env"], "SLURM_CONF": str(folder / "slurm.conf")}
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    subprocess.run(["scancel", "--user", "root"], env=env, check=False)
    subprocess.run([script, "stop", str(folder)], env=env, check=True)


@pytest.fixture
def ask(slurm):
    """ask("squeue", ...) -> what the tool of Slurm prints."""
    return lambda *line: subprocess.run(line, env=slurm, check=True, capture_output=True, text=True).stdout


def number(folder) -> str:
    return rundir.status(folder)["job"].removeprefix("slurm ")


def trains(folder) -> bool:
    return rundir.read(folder)["state"] == "running" and bool(rundir.last_row(folder))


def test_the_same_sweep_gives_the_same_bits_as_here(command, tmp_path, slurm):
    knobs = ("train.steps=12", "train.checkpoints=[6]")
    far = command("-m", "swap=baseline,gelu", "seed=0", "name=far", *knobs, *ON_SLURM, env=slurm)
    assert far.returncode == 0, far.stdout + far.stderr
    assert far.stdout.count("bits per byte in") == 2
    assert command("swap=gelu", "name=here", *knobs).returncode == 0
    mine, other = (weights(home(tmp_path, f"{name}-words") / "gelu/seed0") for name in ("far", "here"))
    assert all(mine[key].equal(other[key]) for key in other)
    numbers = [number(folder) for folder in home(tmp_path, "far-words").glob("*/seed*")]
    assert len(numbers) == 2 and len({one.split("_")[0] for one in numbers}) == 1  # one array


def test_a_preempted_job_saves_waits_and_goes_on(command, tmp_path, slurm, ask):
    sweep = start(command, "-m", "swap=baseline", "seed=0", *LONG, "train.steps=800", *ON_SLURM, env=slurm)
    folder = home(tmp_path, "scratch-words") / "baseline/seed0"
    wait_for(lambda: trains(folder))
    ask("sbatch", "-p", "high", "-c", "2", "-o", "/dev/null", "--wrap", "sleep 1")
    wait_for(lambda: rundir.read(folder)["state"] != "running")
    found = rundir.read(folder)
    assert (found["state"], found["reason"]) == ("interrupted", "SIGTERM")
    assert len(list(folder.glob("checkpoint-*.pt"))) == 1
    said, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, said
    assert "starts over" not in (folder / "log.txt").read_text()
    steps = [row["step"] for row in rundir.read_rows(folder) if "loss" in row]
    assert steps == sorted(set(steps)) and steps[-1] == 800


def test_jobs_of_a_dead_driver_are_found_again_and_not_started_twice(command, tmp_path, slurm):
    line = ("-m", "swap=baseline", "seed=0,1", *LONG, "train.steps=400", *ON_SLURM, "hydra.launcher.jobs=1")
    sweep = start(command, *line, env=slurm)
    sweep_home = home(tmp_path, "scratch-words")
    folders = [sweep_home / f"baseline/seed{k}" for k in range(2)]
    wait_for(lambda: trains(folders[0]))
    sweep.kill()
    sweep.communicate()
    before = [number(folder) for folder in folders]
    assert [rundir.read(folder)["state"] for folder in folders] == ["running", "queued"]
    done = subprocess.run(
        [sys.executable, "-m", "engine.resume", str(tmp_path / "runs")], **{**DEFAULTS, "cwd": ROOT, "env": slurm}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 done before, 2 to train" in done.stdout and "2/2" in done.stdout
    assert [number(folder) for folder in folders] == before
    assert len(list((sweep_home / ".slurm").glob("*_submission.sh"))) == 1


def test_hard_deaths_time_limits_and_a_driver_that_is_stopped(command, tmp_path, slurm, ask):
    sweep = start(command, "-m", "swap=baseline,gelu", "seed=0", *LONG, *ON_SLURM, env=slurm)
    folders = [home(tmp_path, "scratch-words") / f"{swap}/seed0" for swap in ("baseline", "gelu")]
    wait_for(lambda: all(trains(folder) for folder in folders))
    first, second = map(number, folders)
    os.kill(rundir.holder(folders[0])[0], signal.SIGKILL)
    ask("scancel", "--signal=USR2", second)  # as before a time limit
    wait_for(lambda: rundir.read(folders[1])["state"] == "interrupted")
    assert rundir.read(folders[1])["reason"] == "SIGUSR2" and list(folders[1].glob("checkpoint-*.pt"))
    wait_for(lambda: rundir.read(folders[0])["state"] == "failed")
    wait_for(lambda: ask("squeue", "-h", "-r", "-j", second, "-o", "%T").strip() in ("PENDING", "RUNNING"))
    sweep.send_signal(signal.SIGINT)
    said, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 130, said
    assert f"baseline/seed0: FAILED: job {first} of Slurm: FAILED" in said and "gelu/seed0: INTERRUPTED" in said
    assert not ask("squeue", "-h").strip()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("hydra.launcher.partition=nowhere",), "Slurm refuses the jobs: "),
        (("hydra.launcher.minuts=3",), "hydra.launcher.minuts: unknown"),
    ],
)
def test_a_mistake_is_one_line(overrides, expected, command, tmp_path, slurm):
    done = command("-m", "swap=baseline", "seed=0", *ON_SLURM, *overrides, env=slurm)
    assert done.returncode == 2 and expected in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("metrics.jsonl"))
