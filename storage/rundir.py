"""A run's folder: what lies in it, who may write it, and how it outlives a killed process.

Files are the truth. Each is written whole or not at all; only metrics.jsonl grows, and it is cut back to
the checkpoint that a run resumes from. A run has ended when its summary.json is whole, and its folder is
then never written again. A number that is not finite stands as null: JSON has no word for it.
"""

import hashlib
import json
import re
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

import psutil
from filelock import FileLock, MarkerSoftFileLock
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from config import Config, UserError, from_plain
from storage.files import first_line, flatten, load, to_json, write_whole, writing

ENDED = ("finished", "diverged")
LOCK = ".lock"
# A finished or half-finished run may be met again with other values of these: they name or place
# a run, or decide what is written down of it, and never move a weight.
FREE = ("about", "wandb", "runs_dir", "results_dir", "name", "machine.device", "machine.threads", "machine.pack",
        "train.log_every", "train.save_every", "eval.batch_size", "text.path")  # fmt: skip


def place(home: Path, variant: str, seed: int) -> Path:
    """The folder of a run in that of its sweep, whatever characters a swept value brings into the variant's name."""
    return home / quote(variant, safe="=,._-+") / f"seed{seed}"


def variant_of(folder: Path) -> str:
    """The variant whose run a folder holds: the inverse of `place`."""
    return unquote(folder.parent.name)


def identity(config: dict) -> str:
    """A name that follows from the run's place alone: at most 64 of A-Za-z0-9_-, the same on every machine."""
    run = config["run"]
    place = f"{run['variant']}/seed{config['seed']}/{run['sweep']}/{run['scale']}"
    return f"{re.sub('[^A-Za-z0-9_]+', '-', place)[:51]}-{hashlib.sha256(place.encode()).hexdigest()[:12]}"


# ---- reading ----


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
    return None if here and not lives(owner.pid) else (owner.pid, owner.hostname)


def lives(pid: int) -> bool:
    """Whether a process still works. One that has ended and that nobody has asked about, as happens to the orphans
    of a container without an init, does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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
    if found["state"] == "finished" and found["summary"] and not isinstance(found["summary"].get("final_bpb"), float):
        return found | {"state": "damaged", "reason": "summary.json has no result; remove the folder to run it again"}
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


def essential(config: dict) -> dict:
    """The flat configuration without the keys in FREE: two runs with equal ones are the same run."""
    free = tuple(f"{key}." for key in FREE)
    return {key: value for key, value in flatten(config).items() if not f"{key}.".startswith(free)}


def require_same(folder: Path, config: dict) -> dict:
    """The configuration that stands in a folder, {} where there is none. Keys in FREE may differ.

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
    old, new = essential(stored), essential(config)
    differing = [
        f"{key} {old.get(key, 'absent')} -> {new.get(key, 'absent')}"
        for key in sorted(old.keys() | new.keys())
        if key not in old or key not in new or old[key] != new[key]
    ]
    if differing:
        raise UserError(
            f"{folder}: holds another configuration: {', '.join(differing)}; "
            "name=... gives these runs a folder of their own, or remove that folder"
        )
    return stored


def freeze(folder: Path, config: dict) -> None:
    """Writes config.yaml; a run that has not ended takes new values of the keys in FREE.

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
        raise UserError(f"{folder}: no frozen configuration: {first_line(error)}") from error


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
    with writing(home), FileLock(home / ".plan.lock"):  # two drivers may add to one plan
        try:
            planned = load(home / "plan.json").get("runs", [])
        except ValueError as error:
            raise UserError(f"{home}: {error}; without it nobody knows how many runs there should be") from error
        if set(names) - set(planned):
            write_whole(home / "plan.json", to_json({"runs": list(dict.fromkeys([*planned, *names]))}))
