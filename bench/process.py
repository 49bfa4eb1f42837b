"""A command as a process of its own, and what it cost."""

import os
import subprocess
import time
from pathlib import Path

from config import UserError


def timed(command: list[str], folder: Path, env: dict[str, str]) -> tuple[str, dict[str, float]]:
    """Its output, and its seconds from start to end: `wall_s` by the clock, `cpu_s` of all its threads.

    Raises UserError, with its last line, where it fails.
    """
    before, started = os.times(), time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    wall, after = time.perf_counter() - started, os.times()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise UserError(f"{command[1]} ended with exit status {done.returncode}: {last}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return done.stdout, {"wall_s": wall, "cpu_s": cpu}
