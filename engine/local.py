"""The local engine: tasks as child processes, side by side on this machine, one GPU each where there are any."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch

from engine.plan import Job
from engine.task import Task, environment, exit_words, require_count
from training import machine


class Local:
    """`jobs`: tasks at once; None: one per GPU, else as many as the cores hold."""

    look_every, gpus = 0.2, False

    def __init__(self, jobs: int | None = None):
        require_count(jobs, "jobs")
        self.jobs = jobs
        self.slots: dict[int, Child] = {}

    def connect(self) -> None:
        pass

    def side_by_side(self, job: Job) -> int:
        if self.jobs:
            return self.jobs
        if job.config.machine.device not in ("auto", "cpu"):
            return max(1, len(visible_gpus(job)))
        return len(visible_gpus(job)) or max(1, machine.cores() // job.config.machine.threads)

    def room(self, job: Job, running: int) -> int:
        return self.side_by_side(job) - running

    def adopt(self, jobs: list[Job]) -> list[Task]:
        return []  # a child ends with its driver

    def start(self, packs: list[list[Job]]) -> list[Task]:
        self.slots = {slot: child for slot, child in self.slots.items() if child.process.returncode is None}
        children = []
        for jobs in packs:
            slot = next(n for n in range(len(self.slots) + 1) if n not in self.slots)
            self.slots[slot] = child = Child(jobs, slot)
            children.append(child)
        return children

    def stop(self, tasks: list[Task]) -> None:
        for child in tasks:
            child.process.send_signal(signal.SIGINT)


class Child(Task):
    """A process that hears from the driver by a pipe, which closes when the driver dies."""

    def __init__(self, jobs: list[Job], slot: int):
        super().__init__(jobs)
        env = environment(jobs[0])
        if gpus := visible_gpus(jobs[0]):
            env["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
        self.process = open_child([job.folder for job in jobs], env)

    def ended(self) -> str | None:
        code = self.process.poll()
        if code is None:
            return None
        self.process.stdin.close()
        return exit_words(code)


def open_child(folders: list[Path], env: dict[str, str], cwd: str | None = None) -> subprocess.Popen:
    """The process that trains the runs in `folders`; it ends when its standard input closes."""
    with open(folders[0] / "log.txt", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "engine.job", *map(str, folders)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=env,
            cwd=cwd,
            start_new_session=True,  # Ctrl-C reaches the driver alone, which passes it on
        )


def visible_gpus(job: Job) -> list[str]:
    """The GPUs that jobs may be given, by the names that CUDA_VISIBLE_DEVICES knows. Opens no device."""
    device = job.config.machine.device
    if not (device == "auto" or device.startswith("cuda")) or not torch.cuda.is_available():
        return []
    if ":" in device:  # a GPU that the person named: one job at a time, and no other name for it
        return []
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(n) for n in range(torch.cuda.device_count())]
