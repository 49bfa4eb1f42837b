"""Sweeps on a real Ray: one that a sweep starts for itself, and a running one that several share."""

import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from conftest import DEFAULTS, ROOT
from storage import rundir
from test_sweep import home, start
from test_train import wait_for, weights

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="no Ray here: pip install '.[ray]', docs/ray.md"),
    pytest.mark.xdist_group("ray"),  # one worker, one cluster
]

LONG = ("train.steps=100000", "train.checkpoints=[]", "train.save_every=50", "train.log_every=5")
GRID = ("-m", "swap=baseline,gelu", "seed=0", "hydra/launcher=ray")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """The address of a cluster of one node, with two cores and a GPU that it only believes in, and a token for it."""
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    ray += ["--num-cpus=2", "--num-gpus=1", "--include-dashboard=false", "--disable-usage-stats"]
    log = tmp_path_factory.mktemp("ray") / "log.txt"
    mine = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.update(mine)
    DEFAULTS["env"].update(mine)
    with open(log, "wb") as out:
        head = subprocess.Popen(ray, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    wait_for(lambda: "Ray runtime started" in log.read_text() or head.poll() is not None)
    assert head.poll() is None, log.read_text()
    yield f"hydra.launcher.address=127.0.0.1:{port}"
    family = [head, *psutil.Process(head.pid).children(recursive=True)]
    head.terminate()
    head.wait(60)
    for process in family[1:]:
        if process.is_running():
            process.kill()


def trains(folder) -> bool:
    return rundir.read(folder)["state"] == "running" and bool(rundir.last_row(folder))


def test_a_cluster_of_its_own_gives_the_same_bits_as_here(command, tmp_path):
    knobs = ("train.steps=12", "train.checkpoints=[6]")
    far = command(*GRID, "name=far", *knobs)
    assert far.returncode == 0, far.stdout + far.stderr
    assert far.stdout.count("bits per byte in") == 2
    assert command("swap=gelu", "name=here", *knobs).returncode == 0
    mine, other = (weights(home(tmp_path, f"{name}-words") / "gelu/seed0") for name in ("far", "here"))
    assert all(mine[key].equal(other[key]) for key in other)


def test_jobs_share_a_gpu_and_one_that_is_killed_is_named(command, tmp_path, cluster):
    sweep = start(command, *GRID, *LONG, cluster, "hydra.launcher.gpus=0.5")
    folders = [home(tmp_path, "scratch-words") / f"{swap}/seed0" for swap in ("baseline", "gelu")]
    wait_for(lambda: all(trains(folder) for folder in folders))
    children = [psutil.Process(rundir.holder(folder)[0]) for folder in folders]
    assert [child.environ()["CUDA_VISIBLE_DEVICES"] for child in children] == ["0", "0"]
    os.kill(children[0].pid, signal.SIGKILL)
    wait_for(lambda: rundir.read(folders[0])["state"] == "failed")
    sweep.send_signal(signal.SIGINT)
    said, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 130, said
    assert "baseline/seed0: FAILED: killed by SIGKILL" in said and "gelu/seed0: INTERRUPTED: SIGINT" in said
    assert list(folders[1].glob("checkpoint-*.pt"))


def test_after_the_death_of_the_driver_its_runs_go_on_from_their_resume_points(command, tmp_path, cluster):
    sweep = start(command, *GRID, *LONG, "train.steps=400", cluster)
    sweep_home = home(tmp_path, "scratch-words")
    folders = [sweep_home / f"{swap}/seed0" for swap in ("baseline", "gelu")]
    wait_for(lambda: all(len(list(folder.glob("checkpoint-*.pt"))) == 2 for folder in folders))
    sweep.kill()
    sweep.communicate()
    wait_for(lambda: {rundir.read(folder)["state"] for folder in folders} == {"interrupted"})
    resume = [sys.executable, "-m", "engine.resume", str(tmp_path / "runs")]
    done = subprocess.run(resume, **{**DEFAULTS, "cwd": ROOT})
    assert done.returncode == 0, done.stdout + done.stderr
    assert all("starts over" not in (folder / "log.txt").read_text() for folder in folders)
    assert {rundir.read(folder)["state"] for folder in folders} == {"finished"}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("hydra.launcher.address=127.0.0.1:1",), "hydra.launcher.address=127.0.0.1:1: no cluster of Ray"),
        (("CLUSTER", "hydra.launcher.gpus=7"), "a job asks for 1 CPU, 7 GPU; the cluster has 2 CPU, 1 GPU"),
    ],
)
def test_a_mistake_is_one_line(overrides, expected, command, tmp_path, cluster):
    done = command(*GRID, *(cluster if word == "CLUSTER" else word for word in overrides))
    assert done.returncode == 2 and expected in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("metrics.jsonl"))
