"""The share of the parent: what the driver of a sweep costs for each job, the job itself not counted.

In seconds of CPU, which a busy machine stretches less than seconds by the clock.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import cli
from bench.cases import Plan
from bench.crew import ROOT
from config import UserError
from engine.plan import Freezer

ONE_STEP = ("scale=smoke", "train.steps=1", "train.checkpoints=[]", "wandb.mode=disabled")


def measure(plan: Plan, text: Path, say: Callable[[str], None]) -> dict:
    """Raises UserError where a sweep fails."""
    say(f"share of the parent: sweeps of {' and '.join(map(str, plan.sweeps))} jobs, and {plan.freezes} jobs frozen")
    with ExitStack() as stack:
        drivers = []
        for jobs in plan.sweeps:
            folder = stack.enter_context(TemporaryDirectory())
            drivers.append(stack.enter_context(start(jobs, text, folder)))
            stack.callback(drivers[-1].kill)  # where the other one failed; its jobs end with it
        frozen = freezing(plan.freezes, text)
        sweeps = [{"jobs": jobs, **used(jobs, driver)} for jobs, driver in zip(plan.sweeps, drivers, strict=True)]
    return {"freezes": plan.freezes, "freeze_s": frozen, "sweeps": sweeps}


def freezing(jobs: int, text: Path) -> float:
    """CPU seconds of one job from what Hydra composed to a frozen configuration."""
    freezer, composed = Freezer(), cli.compose([*ONE_STEP, "text=file"])
    composed.text.path = str(text)
    freezer.freeze(composed)  # the text is read once for all
    started = time.process_time()
    for seed in range(jobs):
        composed.seed = seed
        freezer.freeze(composed)
    return (time.process_time() - started) / jobs


def start(jobs: int, text: Path, folder: str) -> subprocess.Popen:
    """The driver of a sweep of one-step jobs in a folder of its own; its report is part of what it does."""
    Path(folder, "bench.txt").symlink_to(text)
    places = ["text=file", "text.path=bench.txt", "runs_dir=runs", "results_dir=results"]
    line = [sys.executable, "-m", "bench.driver", "-m", *ONE_STEP, *places, "seed=" + ",".join(map(str, range(jobs)))]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(line, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def used(jobs: int, driver: subprocess.Popen) -> dict:
    """What a driver says at its end. Raises UserError where its sweep failed."""
    said = driver.communicate()[0].strip().splitlines() or ["it said nothing"]
    if driver.returncode:
        raise UserError(f"a sweep of {jobs} one-step jobs ended with exit status {driver.returncode}: {said[-1]}")
    return json.loads(said[-1])
