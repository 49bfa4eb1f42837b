"""Which code and which machine made a run's numbers."""

import hashlib
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
SOURCES = ("gpt.py", "parts/*.py", "text/*.py", "training/*.py")  # what can move a number
MADE = ("results", "README.md")  # what a sweep rewrites itself: the next one comes from the same tree


def provenance(machine: dict, root: Path = ROOT) -> dict:
    """Which code and which machine make the numbers. No host names, paths or environment variables.

    machine: device, device_name, precision, threads, compile, as the run resolved them.
    """
    code = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in root.glob(pattern)):
        code.update(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n".encode() + path.read_bytes())
    return {
        **_git(root),
        "code_sha256": code.hexdigest(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": _cpu(),
        "platform": f"{platform.system()} {platform.machine()}",
        **machine,
    }


def _git(root: Path) -> dict:
    """Commit and uncommitted changes but of what a sweep writes; null without git, or where this code is in no commit.

    Files that git does not know are no changes: code_sha256 sees those that matter.
    """
    try:
        commit, _ = _output("git", "-C", root, "rev-parse", "HEAD", "HEAD:./gpt.py").decode().split()
        beside = [f":(exclude){path}" for path in MADE]
        diff = _output("git", "-C", root, "diff", "--no-ext-diff", "--no-color", "HEAD", "--", ".", *beside)
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None, "diff_sha256": None}
    return {"commit": commit, "dirty": bool(diff), "diff_sha256": hashlib.sha256(diff).hexdigest() if diff else None}


def _output(*command) -> bytes:
    return subprocess.run(command, check=True, capture_output=True, timeout=30).stdout


def _cpu() -> str:
    """The processor's name as its maker writes it."""
    with suppress(OSError, subprocess.SubprocessError, StopIteration):
        if sys.platform == "darwin":
            return _output("sysctl", "-n", "machdep.cpu.brand_string").decode().strip()
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()
