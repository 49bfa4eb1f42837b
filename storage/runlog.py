"""A run's folder while it is written: one process, rows as they come, resume points, an end.

rundir.py says what lies in it.
"""

import errno
import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from filelock import Timeout

from config import UserError
from storage import seal, tensors
from storage.files import first_line, load, to_json, warn, write_whole, writing
from storage.frozen import essential, freeze
from storage.lock import LEASE, LOCK, TICKET, holder, is_here, lease
from storage.rundir import ENDED, forget_dead, had_ended, has_ended, kind, read, read_rows


class RunLog:
    """A run's folder, open for writing in one process at a time.

    A folder whose run has ended is opened without a trace: look at `state` and `summary` first.
    An exception that leaves the block before the run ended is noted as its end.
    Raises UserError on entry: another process runs it, it had ended and is damaged, or whatever `freeze` refuses.
    """

    def __init__(self, folder: Path, config: dict):
        self.folder, self.config = Path(folder), config
        self.state, self.reason, self.summary = "missing", "", {}  # as found on entry
        self.last = {"loss": -1, "val_bpb": -1}  # step of the last row of each kind
        self._status = {"state": "running", "reason": "", "step": 0, "steps": config["train"]["steps"]}
        self._point: tuple[int, dict] | None = None
        self._rows = hashlib.sha256()  # of all that is in metrics.jsonl
        self._metrics = None
        self._status |= {"job": os.environ[TICKET]} if TICKET in os.environ else {}
        self._lock = lease(self.folder / LOCK)

    def __enter__(self) -> "RunLog":
        if not has_ended(self.folder):
            self._acquire()
        try:
            freeze(self.folder, self.config)
            found = read(self.folder)
            self.state, self.reason, self.summary = found["state"], found["reason"], found["summary"]
            if self.state == "damaged" and had_ended(self.folder):
                raise UserError(f"{self.folder}: {self.reason}; it had ended: remove the folder to run it again")
            if self.state == "running":  # it says so, but the lock was free
                self.state, self.reason = "interrupted", "killed"
        except BaseException:
            self._lock.release()
            raise
        if self.ended:  # perhaps by another process, just before the lock was ours
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
    def ended(self) -> bool:
        return self.state in ENDED

    def _acquire(self) -> None:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            forget_dead(self.folder, os.environ.get(TICKET, ""))  # the same job, which its cluster has started again
            try:
                self._lock.acquire(timeout=0)  # takes over from a dead process of this host
            except Timeout:
                self._take_over()

    def _take_over(self) -> None:
        """Of a zombie, which the lock takes for alive, and of another host that stays silent for a lease."""
        owner = self._lock.owner  # None: another process has just made the lock and not yet signed it
        alive = owner is None or holder(self.folder) is not None
        if alive and owner and owner.mode == "lease" and not is_here(owner.hostname):
            warn(f"{self.folder}: begun by pid {owner.pid} on host {owner.hostname}; waiting for a sign of life")
            with suppress(Timeout):
                self._lock.acquire(timeout=1.5 * LEASE)
                return
        if alive:
            by = f"pid {owner.pid} on host {owner.hostname}" if owner else "a process that has just begun"
            raise UserError(
                f"{self.folder}: already being run by {by}; if that is not so, remove {self.folder / LOCK}"
            ) from None
        (self.folder / LOCK).unlink(missing_ok=True)
        self._lock.acquire(timeout=0)

    def _is_mine(self) -> bool:
        """Not where another process has taken the folder over, as after a long sleep of this one."""
        owner = self._lock.owner
        return owner is not None and owner.token == self._lock.token

    def _require_mine(self) -> None:
        if not self._is_mine():
            raise UserError(f"{self.folder}: another process has taken this run over")

    def begin(self, provenance: dict) -> None:
        """Readies the folder: metrics.jsonl is cut back to the newest sound checkpoint, so that no step comes twice.

        A damaged checkpoint is named, removed, and the one before it used; without any the run starts over.
        Raises UserError: the run has ended, or the folder cannot be written.
        """
        if self.ended:
            raise UserError(f"{self.folder}: this run has {self.state}; remove the folder to run it again")
        with writing(self.folder):
            ends = [self.folder / "summary.json", self.folder / seal.SEAL]
            for litter in [*self.folder.glob(".*.tmp"), *ends]:  # left by a kill
                litter.unlink(missing_ok=True)
            rows, before = self._sound_rows(), self._checkpoints()
            self._point = self._newest_point(rows)
            if self._point is None and (rows or before):
                warn(f"{self.folder}: no sound checkpoint, starts over from step 0")
            step = self._point[0] if self._point else -1
            kept = [row for row in rows if row["step"] <= step]
            self.last |= {kind(row): row["step"] for row in kept}
            self._rows = _digest(kept)
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
                found = tensors.load(path)
                if found["whose"] != essential(self.config):
                    problem = "of another run"
                elif found["rows"] != _digest(row for row in rows if row["step"] <= found["step"]).hexdigest():
                    problem = "metrics.jsonl has lost rows from before it, or has others"
                else:
                    return found["step"], found["state"]
            except Exception as error:  # a damaged file can make the readers raise anything
                problem = f"damaged: {first_line(error)}"
            warn(f"{path}: not used, {problem}")
            path.unlink()
        return None

    def _record(self, provenance: dict) -> None:
        """Writes provenance.json. What changed between two sittings stands as 'old then new', which equals no other."""
        old = {}
        if self._point:
            with suppress(ValueError):
                old = load(self.folder / "provenance.json")
            old = old or dict.fromkeys(provenance, "unknown")  # lost: nobody knows what made the beginning
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
        self._require_mine()
        line = to_json(row, None)
        with writing(self.folder / "metrics.jsonl"):
            if self._metrics.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.last[kind(row)] = row["step"]
        self._rows.update(line)

    def save(self, step: int, state: dict) -> bool:
        """Writes a resume point and keeps the newest two. Log the rows of this step first.

        `state` holds tensors and plain values only. Where it cannot be written, those before it stand, the run goes on.
        """
        self._require_mine()
        path = self.folder / f"checkpoint-{step}.pt"
        try:
            os.fsync(self._metrics.fileno())  # no power cut leaves a checkpoint without its rows
            whose = essential(self.config)
            write_whole(
                path, tensors.to_bytes({"step": step, "rows": self._rows.hexdigest(), "whose": whose, "state": state})
            )
        except OSError as error:
            warn(f"{path}: not saved: {error.strerror}; the run goes on, the checkpoint before it stands")
            return False
        for old in self._checkpoints()[:-2]:
            old.unlink()
        return True

    def status(self, state: str, reason: str = "", step: int | None = None) -> None:
        """running, interrupted or failed, and how far. Once the run has ended, its end stands."""
        if self.ended or not self._is_mine():
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
        self._require_mine()
        self._status |= {"state": state, "reason": reason, "step": max(self.last.values())}
        with writing(self.folder):
            write_whole(self.folder / "model.pt", tensors.to_bytes(weights))
            write_whole(self.folder / "status.json", to_json(self._status))
            seal.seal(self.folder, to_json(summary))
            write_whole(self.folder / "summary.json", to_json(summary))  # last: it makes the run count as ended
        self.state, self.reason, self.summary = state, reason, summary
        for path in self._checkpoints():
            path.unlink()


def _digest(rows: Iterable[dict]):
    """The running sha256 of rows as metrics.jsonl has them."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(to_json(row, None))
    return digest
