"""One process at a time, on a file system that several machines share: a marker file with a heartbeat.

The marker is made by an exclusive create. On its own host its process is asked for; from another host it counts as
dead after LEASE seconds without a beat, measured on the observer's clock alone, so that clocks may differ.
"""

import socket
import time
from pathlib import Path

import psutil
from filelock import SoftFileLease

LOCK = ".lock"  # the marker in a run's folder
LEASE = 60  # seconds of silence; a beat comes every third of it
TICKET = "ONESWAP_JOB"  # names the cluster's job to its process: "slurm 12_3"


def lease(path: Path) -> SoftFileLease:
    """A lock that is not yet taken. `acquire(timeout=...)` waits for it and raises filelock.Timeout."""
    return SoftFileLease(path, lease_duration=LEASE)


def owner(folder: Path):
    """What the marker in a run's folder says: pid, hostname, mode, token. None: no marker, or not whole."""
    return lease(folder / LOCK).owner


def is_here(hostname: str) -> bool:
    return hostname.split("?")[0] == socket.gethostname()  # in a container filelock adds "?" and a namespace


def holder(folder: Path) -> tuple[int, str] | None:
    """Process id and host of the live process that runs this folder. One on another host counts as alive: see Watch."""
    found = owner(folder)
    if found is None or (is_here(found.hostname) and not lives(found.pid)):
        return None
    return found.pid, found.hostname


def lives(pid: int) -> bool:
    """Whether a process still works. One that has ended and that nobody has asked about, as happens to the orphans
    of a container without an init, does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Watch:
    """Looks again and again at who runs a folder, and gives up on one that has been silent for a lease."""

    def __init__(self, folder: Path):
        self.path, self.folder = folder / LOCK, folder
        self.beat, self.since = self._beat(), time.monotonic()

    def _beat(self) -> tuple | None:
        try:
            seen = self.path.stat()
        except OSError:
            return None
        return seen.st_ino, seen.st_mtime_ns

    def alive(self) -> bool:
        found = holder(self.folder)
        if found is None or is_here(found[1]):
            return found is not None
        if (beat := self._beat()) != self.beat:
            self.beat, self.since = beat, time.monotonic()
        return time.monotonic() - self.since < LEASE
