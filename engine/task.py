"""What one process trains, wherever it runs, as its driver sees it."""

import os
import signal
from pathlib import Path
from typing import Protocol

from config import UserError
from engine.plan import Job
from storage import rundir
from storage.lock import Watch

# A step frees and takes the same large tensors again and again: kept by the process, in large pages, they cost no
# page faults, 8% of a step. Only glibc reads it.
KEEP_MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"
ROOT = Path(__file__).parents[1]


class Task:
    """Jobs that train in one process: one, or seeds of a variant as one model."""

    again = False  # whether to hand the jobs out again where they have not ended

    def __init__(self, jobs: list[Job]):
        self.jobs, self.asked = jobs, False
        self.log = jobs[0].folder / "log.txt"

    def ended(self) -> str | None:
        """None while the process lives; then how it died, or "" where there is nothing to say."""
        raise NotImplementedError


class Watched(Task):
    """A run that a process of another driver trains: followed, and taken up where that process has died."""

    again = True

    def __init__(self, job: Job):
        super().__init__([job])
        self.watch = Watch(job.folder)

    def ended(self) -> str | None:
        return None if self.watch.alive() and not self.asked else ""


class Engine(Protocol):
    """Where tasks run. `options` of its file in conf/hydra/launcher are its constructor's arguments."""

    look_every: float  # seconds between looks at the tasks
    gpus: bool  # whether tasks get GPUs of machines other than the driver's

    def connect(self) -> None:
        """Reach what runs the tasks. Raises UserError: it is not there."""

    def side_by_side(self, job: Job) -> int:
        """How many tasks at once, as far as the driver can tell."""

    def room(self, job: Job, running: int) -> int:
        """How many more tasks it takes now."""

    def adopt(self, jobs: list[Job]) -> list[Task]:
        """Tasks that an earlier driver has handed out and that the engine still has."""

    def start(self, packs: list[list[Job]]) -> list[Task]:
        """Raises UserError where the engine refuses."""

    def stop(self, tasks: list[Task]) -> None:
        """Ask tasks to save a resume point and end."""


def environment(job: Job) -> dict[str, str]:
    """What a job's process finds in its environment, whatever the person has set kept."""
    threads = str(job.config.machine.threads)
    defaults = {"GLIBC_TUNABLES": KEEP_MEMORY, "TORCHINDUCTOR_COMPILE_THREADS": threads}
    return {**defaults, **os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": threads}


def python_path() -> str:
    """Where a process elsewhere finds this code."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def changes(job: Job) -> dict[str, str]:
    """What `environment` adds to the driver's own: for a process that does not inherit it from the driver."""
    return {key: value for key, value in environment(job).items() if os.environ.get(key) != value}


def exit_words(code: int) -> str:
    """How a process died, from its exit status; "" for 0."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}" if code else ""


def require_count(value, key: str) -> None:
    """Raises UserError for a number of runs side by side that is none."""
    if value is not None and (type(value) is not int or value < 1):
        raise UserError(f"hydra.launcher.{key}={value}: must be a whole number of at least 1")


def noted(job: Job) -> bool:
    """Whether a run's own process has written how it ended."""
    return rundir.status(job.folder).get("state") not in (None, "running", "queued")
