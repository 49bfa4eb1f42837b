"""Uploads ended runs to wandb from their local logs: python -m storage.sync [RUNS_DIR], as `make wandb-sync` does."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from config import UserError
from storage import files, rundir
from storage.files import first_line
from storage.mirror import Copy, end_client, log_report, unreachable

SYNC_WITHIN = 300  # seconds for `sync` to upload one run


def sync(runs_dir: Path) -> int:
    """Uploads every run that has ended, and the report of its sweep. Returns the exit status.

    Each is rebuilt from its local log under its stable id, in the place of what the server has of it: doing it
    twice changes nothing. Raises UserError: nothing to upload, no key, no server.
    """
    folders = sorted(path.parent for path in Path(runs_dir).glob("*/*/*/seed*/summary.json"))
    folders = [folder for folder in folders if rundir.has_ended(folder)]
    if not folders:
        raise UserError(f"{runs_dir}: holds no run that has ended")
    if problem := unreachable():
        raise UserError(f"wandb: {problem}; `wandb login` or WANDB_API_KEY sets a key")
    homes = dict.fromkeys(folder.parent.parent for folder in folders)
    jobs = [*((folder, _upload_run) for folder in folders), *((home, _upload_report) for home in homes)]
    return max(_told(*job) for job in jobs)


def _told(folder: Path, upload: Callable[[Path, Path], str]) -> int:
    """One line for one upload. Its files lie in a temporary folder: that of a run which has ended is never written."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            print(f"{folder}: {upload(folder, Path(scratch))}", flush=True)
        except Exception as error:
            print(f"{folder}: FAILED: {first_line(error)}", flush=True)
            end_client()
            return 1
    return 0


def _upload_run(folder: Path, scratch: Path) -> str:
    config, status = files.load(folder / "config.yaml"), files.load(folder / "status.json")
    copy = Copy(folder, config, "online", scratch, SYNC_WITHIN, resume=False)
    copy.end(files.load(folder / "summary.json"), exit_code=int(status["state"] != "finished"))
    return copy.run.url


def _upload_report(home: Path, scratch: Path) -> str:
    config = files.load(next(home.glob("*/seed*/config.yaml")))
    return f"report: {log_report(config, 'online', scratch, SYNC_WITHIN)}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m storage.sync", description="Upload ended runs to wandb.")
    parser.add_argument("runs_dir", nargs="?", type=Path, default=Path("runs"))
    try:
        return sync(parser.parse_args(arguments).runs_dir)
    except UserError as error:
        print(f"oneswap: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
