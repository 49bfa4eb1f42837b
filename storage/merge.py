"""Brings the runs of another machine into this one's: python -m storage.merge FROM [RUNS].

None of theirs may be damaged. A run that is in both must have the same configuration and, where it has ended in both,
the same numbers. Otherwise nothing is copied and each such run is named. Of two, an ended one stands; of two that have
not ended, the one here.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from cli import in_one_line
from config import UserError
from storage import files, frozen, rundir
from storage.lock import LOCK, holder

HOW_FAST = ("train_s", "tokens_per_s", "peak_mb")  # of summary.json: what may differ between two machines
MOST = 10  # runs named in a refusal


def runs_in(root: Path) -> dict[Path, Path]:
    """scale/sweep/variant/seed<k> -> folder."""
    return {path.relative_to(root): path for path in sorted(root.glob("[!.]*/[!.]*/[!.]*/seed*")) if path.is_dir()}


def conflict(theirs: Path, ours: Path) -> str:
    """Why two folders cannot be the same run; "" where they are. Raises UserError: a configuration is not readable."""
    try:
        frozen.require_same(ours, files.load(theirs / "config.yaml"))
        if not (rundir.has_ended(theirs) and rundir.has_ended(ours)):
            return ""
        pair = [files.flatten(files.load(folder / "summary.json")) for folder in (ours, theirs)]
    except (UserError, ValueError) as error:
        return f"{theirs}: {error}"
    keys = [key for key in sorted(pair[0].keys() | pair[1].keys()) if pair[0].get(key) != pair[1].get(key)]
    keys = [key for key in keys if key not in HOW_FAST]
    return f"{theirs} and {ours}: other {', '.join(keys)}" if keys else ""


def copy_whole(source: Path, target: Path) -> None:
    """A folder under its name all at once, in the place of one that has not ended."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (target.with_name(f".{target.name}.{os.getpid()}.{word}") for word in ("new", "old"))
    shutil.copytree(source, fresh, ignore=shutil.ignore_patterns(LOCK, ".*.tmp"))
    if target.exists():
        os.rename(target, old)
    os.rename(fresh, target)
    shutil.rmtree(old, ignore_errors=True)


def merge(source: Path, into: Path) -> int:
    """Returns the exit status.

    Raises UserError, before anything is copied: no runs, damage, a conflict, a run that goes on here.
    """
    theirs, ours = runs_in(source), runs_in(into)
    if not theirs:
        raise UserError(f"{source}: holds no runs, as <scale>/<sweep>/<variant>/seed<k>")
    both = [name for name in theirs if name in ours]
    bad = [
        f"{folder}: {part['reason']}"
        for folder in theirs.values()
        if (part := rundir.read(folder))["state"] == "damaged"
    ]
    bad += [line for name in both if (line := conflict(theirs[name], ours[name]))]
    if bad:
        more = f"; and {len(bad) - MOST} more" if len(bad) > MOST else ""
        raise UserError(f"nothing was copied: {'; '.join(bad[:MOST])}{more}")
    new = [name for name in theirs if name not in ours]
    new += [name for name in both if rundir.has_ended(theirs[name]) and not rundir.has_ended(ours[name])]
    if busy := [ours[name] for name in both if name in new and holder(ours[name])]:
        raise UserError(f"nothing was copied: {busy[0]} is being run here")
    with files.writing(into):
        for name in new:
            copy_whole(theirs[name], into / name)
    for plan in source.glob("[!.]*/[!.]*/plan.json"):
        rundir.write_plan(into / plan.parent.relative_to(source), files.load(plan).get("runs", []))
    print(f"{len(new)} runs copied, {len(theirs) - len(new)} were here already; `make results` builds the tables")
    return 0


def main(asked: argparse.Namespace) -> int:
    return merge(asked.source, asked.into)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(prog="python -m storage.merge", description="Bring in runs of another machine.")
    arguments.add_argument("source", type=Path, metavar="FROM", help="its runs folder")
    arguments.add_argument("into", type=Path, nargs="?", default=Path("runs"), metavar="RUNS", help="this one's")
    sys.exit(in_one_line(main, arguments.parse_args()))
