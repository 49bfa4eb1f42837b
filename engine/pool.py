"""The local engine: jobs as child processes, side by side on this machine."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from engine.plan import Job
from engine.progress import Board
from storage import rundir
from training import machine
from training.packed import can_pack
from training.stopping import Stopped, stop_signals

LOOK_EVERY = 0.2  # seconds between looks at the children
# A step frees and takes the same large tensors again and again: kept by the process, in large pages, they cost no
# page faults, 8% of a step. Only glibc reads it.
KEEP_MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"
ROOT = Path(__file__).parents[1]


class Pool:
    """Runs jobs, at most `width` processes at once. A job's failure is its own: the others go on."""

    def __init__(self, jobs: list[Job], width: int):
        self.waiting, self.width = packs(jobs), width
        self.children: dict[int, Child] = {}  # slot -> child
        self.board = Board({job.name: job.config.train.steps for job in jobs})

    def run(self) -> None:
        """Returns when every job has ended, well or not. Raises Stopped after each has saved a resume point."""
        with self.board, stop_signals() as stopped:
            while self.children or (self.waiting and not stopped()):
                for slot in range(self.width):
                    if slot not in self.children and self.waiting and not stopped():
                        self.children[slot] = Child(self.waiting.pop(0), slot)
                for slot, child in list(self.children.items()):
                    if stopped():
                        child.ask_to_stop()
                    self.look_at(slot, child)
                time.sleep(LOOK_EVERY)
        if stopped():
            raise Stopped(stopped())

    def look_at(self, slot: int, child: "Child") -> None:
        code = child.process.poll()
        for job, tail in zip(child.jobs, child.tails, strict=True):
            for row in tail.rows():
                self.board.row(job.name, row)
        if code is not None:
            del self.children[slot]
            child.bury(code)
            for job in child.jobs:
                self.board.done(job.name, describe(job, child.log))


class Child:
    """A process for one job, or for a pack. It hears from the driver by a pipe that closes when the driver dies."""

    def __init__(self, jobs: list[Job], slot: int):
        self.jobs, self.asked = jobs, False
        self.tails = [rundir.Tail(job.folder) for job in jobs]
        self.log = jobs[0].folder / "log.txt"
        env = environment(jobs[0])
        if gpus := visible_gpus(jobs[0]):
            env["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "engine.job", *(str(job.folder) for job in jobs)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,  # Ctrl-C reaches the driver alone, which passes it on
            )

    def ask_to_stop(self) -> None:
        if not self.asked:
            self.asked = True
            self.process.send_signal(signal.SIGINT)

    def bury(self, code: int) -> None:
        """Note an end that the jobs could not note themselves."""
        self.process.stdin.close()
        state = "interrupted" if self.asked else "failed"
        for job in self.jobs:
            if code < 0:
                rundir.note_end(job.folder, state, f"killed by {signal.Signals(-code).name}")
            elif code and rundir.read(job.folder)["state"] == "missing":
                rundir.note_end(job.folder, "failed", f"ended with exit status {code} before it began")


def packs(jobs: list[Job]) -> list[list[Job]]:
    """The jobs of each process, in the order of the plan: one, or seeds of one variant that train as one model."""
    variants: dict[Path, list[Job]] = {}
    for job in jobs:
        variants.setdefault(job.folder.parent if can_pack(job.config) else job.folder, []).append(job)
    found = []
    for seeds in variants.values():
        size = seeds[0].config.machine.pack or (len(seeds) if visible_gpus(seeds[0]) else 1)
        found += [seeds[i : i + size] for i in range(0, len(seeds), size)]
    return found


def environment(job: Job) -> dict[str, str]:
    """What a job's process finds in its environment, whatever the person has set kept."""
    threads = str(job.config.machine.threads)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    defaults = {"GLIBC_TUNABLES": KEEP_MEMORY, "TORCHINDUCTOR_COMPILE_THREADS": threads}
    return {**defaults, **os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": threads}


def side_by_side(job: Job) -> int:
    """How many runs at once: one per GPU, else as many as the cores hold."""
    if job.config.machine.device not in ("auto", "cpu"):
        return max(1, len(visible_gpus(job)))
    return len(visible_gpus(job)) or max(1, machine.cores() // job.config.machine.threads)


def visible_gpus(job: Job) -> list[str]:
    """The GPUs that jobs may be given, by the names that CUDA_VISIBLE_DEVICES knows. Opens no device."""
    device = job.config.machine.device
    if not (device == "auto" or device.startswith("cuda")) or not torch.cuda.is_available():
        return []
    if ":" in device:  # a GPU that the person named: one job at a time, and no other name for it
        return []
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(n) for n in range(torch.cuda.device_count())]


def describe(job: Job, log: Path | None = None) -> str:
    """One line about a job that has ended: its number, or why there is none and where its process wrote."""
    part = rundir.read(job.folder)
    if part["state"] == "finished":
        return f"{job.name}: {part['summary']['final_bpb']:.3f} bits per byte in {part['summary']['train_s']:.0f} s"
    if owner := rundir.holder(job.folder):
        return f"{job.name}: not ours: being run by pid {owner[0]} on host {owner[1]}"
    return f"{job.name}: {part['state'].upper()}: {part['reason']}" + (f" (see {log})" if log else "")
