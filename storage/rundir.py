"""A run's folder: what lies in it, who may write it, and how it outlives a killed process.

Files are the truth. Each is written whole or not at all; only metrics.jsonl grows, and it is cut back to
the checkpoint that a run resumes from. A run has ended when its summary.json is whole, and its folder is
then never written again. A number that is not finite stands as null: JSON has no word for it.
"""

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from filelock import Timeout

from config import UserError
from storage import seal
from storage.files import load, to_json, write_whole, writing
from storage.lock import LEASE, LOCK, holder, lease

ENDED = ("finished", "diverged")


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


def last_row(folder: Path) -> dict:
    """The newest whole row of the training loss; {} where there is none."""
    with suppress(OSError), open(folder / "metrics.jsonl", "rb") as file:
        file.seek(-min(4096, file.seek(0, os.SEEK_END)), os.SEEK_END)
        for line in reversed(file.read().split(b"\n")[:-1]):
            with suppress(ValueError):
                if "loss" in (row := json.loads(line)):
                    return row
    return {}


def has_ended(folder: Path) -> bool:
    """Whether the run is over, finished or diverged, and its result whole."""
    try:
        return bool(load(folder / "summary.json")) and load(folder / "status.json").get("state") in ENDED
    except ValueError:
        return False


def had_ended(folder: Path) -> bool:
    """Whether the run was over once, whatever has become of its files since: they are not ours to write."""
    return (folder / seal.SEAL).exists() or has_ended(folder)


def read(folder: Path) -> dict:
    """state, reason, step, summary and config of a run, whatever its folder holds.

    States: finished, diverged, running, failed, interrupted (killed, too), queued (a cluster has it), missing (not
    started), damaged (the reason names the file).
    """
    folder = Path(folder)
    found = {"state": "missing", "reason": "not started", "step": 0, "summary": {}, "config": {}}
    try:
        found["config"] = load(folder / "config.yaml")
        told = load(folder / "status.json")
        found |= {key: told[key] for key in ("state", "reason", "step") if key in told}
        found["summary"] = load(folder / "summary.json")
        problem = seal.broken(folder) if found["summary"] else ""
    except ValueError as error:
        return found | {"state": "damaged", "reason": str(error)}
    if problem:
        return found | {"state": "damaged", "reason": problem}
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


def status(folder: Path) -> dict:
    """What status.json says, true or out of date: state, reason, step, steps, and job where a cluster runs it."""
    try:
        return load(folder / "status.json")
    except ValueError:
        return {}


def enqueue(folder: Path, job: str, steps: int) -> None:
    """Notes which job of a cluster has a run. One that has already begun to write stands."""
    with writing(folder):
        before = status(folder)
        if holder(folder) is None and not has_ended(folder) and before.get("job") != job:
            new = {"state": "queued", "reason": job, "step": before.get("step", 0), "steps": steps, "job": job}
            write_whole(folder / "status.json", to_json(new))


def forget_dead(folder: Path, job: str) -> None:
    """Removes the marker that a cluster's job has left. Call it where the cluster says that this job is gone."""
    if job and status(folder).get("job") == job:
        (folder / LOCK).unlink(missing_ok=True)


def note_end(folder: Path, state: str, reason: str) -> None:
    """Notes for a dead process how its run ended. One that has ended, or that another process runs, is left alone."""
    if folder.is_dir() and not had_ended(folder) and holder(folder) is None:
        with suppress(OSError, ValueError):  # a word for the reader; the run's failure is told in any case
            write_whole(
                folder / "status.json", to_json(load(folder / "status.json") | {"state": state, "reason": reason})
            )


def write_plan(home: Path, names: list[str], engine: dict | None = None) -> None:
    """Adds '<variant>/seed<k>' of each run to plan.json: all that were ever planned in this sweep, and the engine.

    Raises UserError: it cannot be written, or is damaged.
    """
    path = home / "plan.json"
    try:
        with writing(home), lease(home / ".plan.lock").acquire(timeout=2 * LEASE):  # two drivers may add to one plan
            plan = load(path)
            new = plan | {"runs": list(dict.fromkeys([*plan.get("runs", []), *names]))}
            new |= {"engine": engine} if engine else {}
            if new != plan:
                write_whole(path, to_json(new))
    except ValueError as error:
        raise UserError(f"{home}: {error}; without it nobody knows how many runs there should be") from error
    except Timeout:
        raise UserError(f"{home}: another driver does not let go of .plan.lock; remove it if there is none") from None
