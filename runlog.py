"""A run's folder: what lies in it, who may write it, and how it outlives a killed process.

Files are the truth. Each is written whole or not at all; only metrics.jsonl grows, and it is cut back to
the checkpoint that a run resumes from. A run has ended when its summary.json is whole, and its folder is
then never written again. A number that is not finite stands as null: JSON has no word for it.
"""

import errno
import hashlib
import io
import json
import math
import os
import platform
import re
import socket
import subprocess
import sys
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import yaml
from filelock import MarkerSoftFileLock, Timeout
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from config import FREE, Config, UserError, from_plain

# torch is imported where it is used: reading a folder needs none of it.

ENDED = ("finished", "diverged")
LOCK = ".lock"
YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where it is there: ten times as fast


def warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr, flush=True)


def flatten(config: dict, prefix: str = "") -> dict:
    """Nested sections as dotted keys."""
    flat = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def identity(config: dict) -> str:
    """A name that follows from the run's place alone: at most 64 of A-Za-z0-9_-, the same on every machine."""
    run = config["run"]
    place = f"{run['variant']}/seed{config['seed']}/{run['sweep']}/{run['scale']}"
    return f"{re.sub('[^A-Za-z0-9_]+', '-', place)[:51]}-{hashlib.sha256(place.encode()).hexdigest()[:12]}"


# ---- reading ----


def load(path: Path) -> dict:
    """The mapping in a JSON or YAML file; empty where there is no file. Raises ValueError: not whole."""
    try:
        text = path.read_text()
        value = json.loads(text) if path.suffix == ".json" else yaml.load(text, YAML)
    except FileNotFoundError:
        return {}
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path.name} is damaged: {str(error).splitlines()[0]}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is damaged: it starts with {text[:20]!r}")
    return value


def kind(row: dict) -> str:
    """What a row of metrics.jsonl tells: the training loss or an evaluation."""
    return "val_bpb" if "val_bpb" in row else "loss"


def read_rows(folder: Path) -> list[dict]:
    """metrics.jsonl in order, less a torn last line, as a kill leaves it. Raises ValueError: damaged further up."""
    try:
        *lines, _ = (folder / "metrics.jsonl").read_text().split("\n")
        rows = [json.loads(line) for line in lines]
        for row in rows:
            row["step"], row[kind(row)]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"metrics.jsonl is damaged: {error}") from error
    return rows


def has_ended(folder: Path) -> bool:
    """Whether the run is over, finished or diverged, and its result whole."""
    try:
        return bool(load(folder / "summary.json")) and load(folder / "status.json").get("state") in ENDED
    except ValueError:
        return False


def holder(folder: Path) -> tuple[int, str] | None:
    """Process id and host of the live process that runs this folder. One on another host counts as alive."""
    owner = MarkerSoftFileLock(folder / LOCK).owner
    if owner is None:
        return None
    here = owner.hostname.split("?")[0] == socket.gethostname()  # in a container filelock adds "?" and a namespace
    return None if here and not psutil.pid_exists(owner.pid) else (owner.pid, owner.hostname)


def read(folder: Path) -> dict:
    """state, reason, step and summary of a run, whatever its folder holds.

    States: finished, diverged, running, failed, interrupted (killed, too), missing (not started),
    damaged (the reason names the file).
    """
    folder = Path(folder)
    found = {"state": "missing", "reason": "not started", "step": 0, "summary": {}}
    try:
        load(folder / "config.yaml")
        status = load(folder / "status.json")
        found |= {"summary": load(folder / "summary.json"), **{k: status[k] for k in found.keys() & status.keys()}}
    except ValueError as error:
        return found | {"state": "damaged", "reason": str(error)}
    if (found["state"] in ENDED) != bool(found["summary"]):
        found |= {"state": "interrupted", "reason": "killed while its result was written"}
    elif found["state"] == "running" and holder(folder) is None:
        found |= {"state": "interrupted", "reason": "killed"}
    return found


class Tail:
    """Follows metrics.jsonl of a run in another process, from its present end."""

    def __init__(self, folder: Path):
        self.path = folder / "metrics.jsonl"
        self.at = self._size()

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def rows(self) -> list[dict]:
        """The rows that came since the last look."""
        self.at = min(self.at, self._size())  # a resumed run has cut its file back
        if not self.path.exists():
            return []
        with open(self.path, "rb") as file:
            file.seek(self.at)
            *lines, rest = file.read().split(b"\n")
            self.at = file.tell() - len(rest)
        rows = []
        for line in lines:
            with suppress(ValueError):  # cut back and grown past the last look: a line met in its middle
                rows.append(json.loads(line))
        return rows


# ---- writing ----


@contextmanager
def writing(place: Path):
    """What the file system refuses becomes one line that names the place."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{place}: cannot be written: {error.strerror or error}") from error


def write_whole(path: Path, data: bytes) -> None:
    """All of `data` under its name, or the old file as it was. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    with suppress(OSError):  # some file systems cannot sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _finite(value):
    """The same structure with null for nan and inf."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: dict, indent: int | None = 1) -> bytes:
    return (json.dumps(_finite(value), indent=indent) + "\n").encode()


def _tensors(value: dict) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def require_same(folder: Path, config: dict) -> dict:
    """The configuration that stands in a folder, {} where there is none. Keys in config.FREE may differ.

    Raises UserError: another configuration, with each key's two values; foreign or damaged files.
    """
    try:
        stored = load(folder / "config.yaml")
    except ValueError as error:
        raise UserError(f"{folder}: {error}; remove the folder to run this again") from error
    if not stored:
        if strangers := sorted(path.name for path in folder.glob("[!.]*")):
            raise UserError(f"{folder}: not a run's folder: it holds {', '.join(strangers[:3])} but no config.yaml")
        return {}
    free = tuple(f"{key}." for key in FREE)
    old, new = ({k: v for k, v in flatten(c).items() if not f"{k}.".startswith(free)} for c in (stored, config))
    if old != new:
        differing = [
            f"{key} {old.get(key, 'absent')} -> {new.get(key, 'absent')}"
            for key in sorted(old.keys() | new.keys())
            if key not in old or key not in new or old[key] != new[key]
        ]
        raise UserError(
            f"{folder}: holds another configuration: {', '.join(differing)}; "
            "name=... gives these runs a folder of their own, or remove that folder"
        )
    return stored


def freeze(folder: Path, config: dict) -> None:
    """Writes config.yaml; a run that has not ended takes new values of the keys in config.FREE.

    Raises UserError: as `require_same`, or a place that cannot be written.
    """
    if require_same(folder, config) != config and not has_ended(folder):
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            # OmegaConf quotes a string such as 'no' or '12e34' wherever some reader would take it for another type.
            write_whole(folder / "config.yaml", OmegaConf.to_yaml(config).encode())


def thaw(folder: Path) -> Config:
    """The frozen configuration. Raises UserError where there is none."""
    try:
        plain = load(folder / "config.yaml")
        if not plain:
            raise ValueError("config.yaml is not there")
        return from_plain(plain)
    except (ValueError, OmegaConfBaseException) as error:
        raise UserError(f"{folder}: no frozen configuration: {str(error).splitlines()[0]}") from error


def state(folder: Path, config: dict) -> str:
    """The state of the run that a folder holds. Raises UserError where it is another run's."""
    require_same(folder, config)
    return read(folder)["state"]


def note_end(folder: Path, state: str, reason: str) -> None:
    """Notes for a dead process how its run ended. One that has ended, or that another process runs, is left alone."""
    if folder.is_dir() and not has_ended(folder) and holder(folder) is None:
        with suppress(OSError, ValueError):  # a word for the reader; the run's failure is told in any case
            write_whole(
                folder / "status.json", to_json(load(folder / "status.json") | {"state": state, "reason": reason})
            )


def write_plan(home: Path, names: list[str]) -> None:
    """Adds '<variant>/seed<k>' of each run to plan.json: all that were ever planned in this sweep.

    Raises UserError: it cannot be written, or is damaged.
    """
    try:
        planned = load(home / "plan.json").get("runs", [])
    except ValueError as error:
        raise UserError(f"{home}: {error}; without it nobody knows how many runs there should be") from error
    if set(names) - set(planned):
        with writing(home):
            write_whole(home / "plan.json", to_json({"runs": list(dict.fromkeys([*planned, *names]))}))


class RunLog:
    """A run's folder, open for writing in one process at a time.

    A folder whose run has ended is opened without a trace: look at `state` and `summary` first.
    An exception that leaves the block before the run ended is noted as its end.
    Raises UserError on entry: another process runs it, or whatever `freeze` refuses.
    """

    def __init__(self, folder: Path, config: dict):
        self.folder, self.config = Path(folder), config
        self.state, self.reason, self.summary = "missing", "", {}  # as found on entry
        self.last = {"loss": -1, "val_bpb": -1}  # step of the last row of each kind
        self._status = {"state": "running", "reason": "", "step": 0, "steps": config["train"]["steps"]}
        self._point: tuple[int, dict] | None = None
        self._count = 0  # rows in metrics.jsonl
        self._metrics = None
        self._lock = MarkerSoftFileLock(self.folder / LOCK)

    def __enter__(self) -> "RunLog":
        if not has_ended(self.folder):
            self._acquire()
        try:
            freeze(self.folder, self.config)
            found = read(self.folder)
            self.state, self.reason, self.summary = found["state"], found["reason"], found["summary"]
            if self.state == "running":  # it says so, but the lock was free
                self.state, self.reason = "interrupted", "killed"
        except BaseException:
            self._lock.release()
            raise
        if self._ended:  # perhaps by another process, just before the lock was ours
            self._lock.release()
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if error is not None and self._lock.is_locked and self._status["state"] == "running":
            state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            line = (str(error).splitlines() or [""])[0]
            reason = line if isinstance(error, (UserError, KeyboardInterrupt)) else f"{kind.__name__}: {line}"
            self.status(state, reason, step=max(0, *self.last.values()))
        if self._metrics:
            self._metrics.close()
        self._lock.release()

    @property
    def _ended(self) -> bool:
        return self.state in ENDED

    def _acquire(self) -> None:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)  # takes over from a dead process of this host
            except Timeout as error:
                owner = self._lock.owner
                by = f"pid {owner.pid} on host {owner.hostname}" if owner else "a process that left no name"
                raise UserError(
                    f"{self.folder}: already being run by {by}; if that is not so, remove {self.folder / LOCK}"
                ) from error

    def begin(self, provenance: dict) -> None:
        """Readies the folder: metrics.jsonl is cut back to the newest sound checkpoint, so that no step comes twice.

        A damaged checkpoint is named, removed, and the one before it used; without any the run starts over.
        Raises UserError: the run has ended, or the folder cannot be written.
        """
        if self._ended:
            raise UserError(f"{self.folder}: this run has {self.state}; remove the folder to run it again")
        with writing(self.folder):
            for litter in [*self.folder.glob(".*.tmp"), self.folder / "summary.json"]:  # left by a kill
                litter.unlink(missing_ok=True)
            rows, before = self._sound_rows(), self._checkpoints()
            self._point = self._newest_point(rows)
            if self._point is None and (rows or before):
                warn(f"{self.folder}: no sound checkpoint, starts over from step 0")
            step = self._point[0] if self._point else -1
            kept = [row for row in rows if row["step"] <= step]
            self.last |= {kind(row): row["step"] for row in kept}
            self._count = len(kept)
            write_whole(self.folder / "metrics.jsonl", b"".join(to_json(row, None) for row in kept))
            self._metrics = open(self.folder / "metrics.jsonl", "ab", buffering=0)  # noqa: SIM115 (closed on exit)
            self._record(provenance)
        self.status("running", step=max(step, 0))

    def restore(self) -> tuple[int, dict] | None:
        """(step, state) of the checkpoint that `begin` found, handed over once; None: start at step 0."""
        point, self._point = self._point, None
        return point

    def _sound_rows(self) -> list[dict]:
        try:
            return read_rows(self.folder)
        except ValueError as error:
            warn(f"{self.folder}: {error}")
            return []

    def _checkpoints(self) -> list[Path]:
        """Oldest first."""
        steps = {path: path.stem.removeprefix("checkpoint-") for path in self.folder.glob("checkpoint-*.pt")}
        return sorted((path for path, step in steps.items() if step.isdecimal()), key=lambda path: int(steps[path]))

    def _newest_point(self, rows: list[dict]) -> tuple[int, dict] | None:
        for path in reversed(self._checkpoints()):
            try:
                found = _load_checkpoint(path)
                if found["rows"] == sum(row["step"] <= found["step"] for row in rows):
                    return found["step"], found["state"]
                problem = "metrics.jsonl has lost rows from before it"
            except Exception as error:  # a damaged file can make the readers raise anything
                problem = f"damaged: {(str(error).splitlines() or [type(error).__name__])[0]}"
            warn(f"{path}: not used, {problem}")
            path.unlink()
        return None

    def _record(self, provenance: dict) -> None:
        """Writes provenance.json. What changed between two sittings stands as 'old then new', which equals no other."""
        old = {}
        if self._point:
            with suppress(ValueError):
                old = load(self.folder / "provenance.json")
        mixed = {}
        for key in old:
            now = provenance.get(key)
            if old[key] != now:
                warn(f"{self.folder}: begun with {key} {old[key]}, goes on with {now}")
                mixed[key] = old[key] if str(old[key]).endswith(f" then {now}") else f"{old[key]} then {now}"
        write_whole(self.folder / "provenance.json", to_json(provenance | mixed))

    def log(self, row: dict) -> None:
        """Appends a training row (it has "loss") or an evaluation row ("val_bpb").

        Raises ValueError: steps of a kind must rise. Raises UserError: the row cannot be written whole.
        """
        last = self.last[kind(row)]
        if row["step"] <= last:
            raise ValueError(f"{kind(row)} of step {row['step']} after that of step {last}")
        line = to_json(row, None)
        with writing(self.folder / "metrics.jsonl"):
            if self._metrics.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.last[kind(row)] = row["step"]
        self._count += 1

    def save(self, step: int, state: dict) -> bool:
        """Writes a resume point and keeps the newest two. Log the rows of this step first.

        `state` holds tensors and plain values only. Where it cannot be written, those before it stand, the run goes on.
        """
        path = self.folder / f"checkpoint-{step}.pt"
        try:
            os.fsync(self._metrics.fileno())  # no power cut leaves a checkpoint without its rows
            write_whole(path, _tensors({"step": step, "rows": self._count, "state": state}))
        except OSError as error:
            warn(f"{path}: not saved: {error.strerror}; the run goes on, the checkpoint before it stands")
            return False
        for old in self._checkpoints()[:-2]:
            old.unlink()
        return True

    def status(self, state: str, reason: str = "", step: int | None = None) -> None:
        """running, interrupted or failed, and how far. Once the run has ended, its end stands."""
        if self._ended:
            return
        self._status |= {"state": state, "reason": reason} | ({} if step is None else {"step": step})
        try:
            write_whole(self.folder / "status.json", to_json(self._status))
        except OSError as error:  # only watchers read it: no reason to end a run
            warn(f"{self.folder / 'status.json'}: not written: {error.strerror}")

    def finish(self, summary: dict, weights: dict, state: str = "finished", reason: str = "") -> None:
        """Ends the run, finished or diverged, and removes its checkpoints.

        Raises UserError: the result cannot be written; the checkpoints then still stand.
        """
        self._status |= {"state": state, "reason": reason, "step": max(self.last.values())}
        with writing(self.folder):
            write_whole(self.folder / "model.pt", _tensors(weights))
            write_whole(self.folder / "status.json", to_json(self._status))
            write_whole(self.folder / "summary.json", to_json(summary))  # last: it makes the run count as ended
        self.state, self.reason, self.summary = state, reason, summary
        for path in self._checkpoints():
            path.unlink()


def _load_checkpoint(path: Path) -> dict:
    """Raises anything for a damaged file. torch alone reads on: it does not check the CRC-32 of what it reads."""
    import torch

    with zipfile.ZipFile(path) as archive:
        if record := archive.testzip():
            raise ValueError(f"wrong checksum of {record}")
    return torch.load(path, map_location="cpu", weights_only=True)


# ---- provenance ----

ROOT = Path(__file__).parent
SOURCES = (  # what can move a number
    "gpt.py", "parts/*.py", "corpus.py", "documents.py", "symbols.py",
    "evaluate.py", "machine.py", "optim.py", "train.py",
)  # fmt: skip


def provenance(machine: dict, root: Path = ROOT) -> dict:
    """Which code and which machine make the numbers. No host names, paths or environment variables.

    machine: device, device_name, precision, threads, compile, as the run resolved them.
    """
    import torch

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
    """Commit and uncommitted changes; null where git is not there or this code is in no commit.

    Files that git does not know are no changes: code_sha256 sees those that matter.
    """
    try:
        commit, _ = _output("git", "-C", root, "rev-parse", "HEAD", "HEAD:./gpt.py").decode().split()
        diff = _output("git", "-C", root, "diff", "--no-ext-diff", "--no-color", "HEAD")
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
