"""How far sweeps are, whatever engine runs them and from any machine: read from the run folders alone.

python -m engine.status [RUNS] [--sweep NAME] [--scale NAME]
"""

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from analysis import runs
from cli import in_one_line
from config import UserError
from storage import files, rundir
from storage.lock import holder

MOST_LINES = 40  # runs shown one by one, of those that are not finished
FIRST = ("running", "failed", "damaged", "interrupted", "diverged", "queued", "missing")  # order of the lines


@dataclass(frozen=True)
class Seen:
    """A run as its folder shows it. `speed`: symbols trained on per second, of a run that goes on."""

    name: str
    state: str
    step: int
    steps: int
    symbols: int  # still to train on
    speed: float
    note: str

    def line(self) -> list:
        left = span(self.symbols / self.speed) if self.speed else ""
        return [f"  {self.name}", self.state, f"{self.step:,}/{self.steps:,}", left, self.note]


def find(runs_dir: Path, sweep: str | None, scale: str | None) -> list[Path]:
    """The folders of sweeps with a plan. Raises UserError where there is none."""
    homes = sorted(path.parent for path in Path(runs_dir).glob("[!.]*/[!.]*/plan.json"))
    chosen = [home for home in homes if sweep in (None, home.name) and scale in (None, home.parent.name)]
    if not chosen:
        there = ", ".join(f"{home.parent.name}/{home.name}" for home in homes) or "no sweep"
        raise UserError(f"{runs_dir}: no sweep {scale or '*'}/{sweep or '*'}; there: {there}")
    return chosen


def folders(home: Path) -> dict[str, Path]:
    """Name -> folder of every run of a sweep: those planned, then any other that is there."""
    names = [(variant, seed, rundir.place(home, variant, seed)) for variant, seed in runs.planned(home)]
    others = sorted(path for path in home.glob("[!.]*/seed*") if runs.is_run(path))
    names += [(rundir.variant_of(path), int(path.name[4:]), path) for path in others]
    return {f"{variant}/seed{seed}": folder for variant, seed, folder in names}


def see(name: str, folder: Path) -> Seen:
    if rundir.has_ended(folder):  # nothing else of it is read: there may be thousands
        told = rundir.status(folder)
        return Seen(name, told["state"], told.get("step", 0), told.get("steps", 0), 0, 0.0, told.get("reason", ""))
    found = rundir.read(folder)
    try:
        config = files.load(folder / "config.yaml")
        steps, symbols = config["train"]["steps"], config["train"]["batch_size"] * config["model"]["context"]
    except (ValueError, KeyError, TypeError):
        steps = symbols = 0
    row, speed, note = rundir.last_row(folder), 0.0, str(found["reason"] or "")
    step = max(found["step"], row.get("step", 0))
    if found["state"] == "running":
        speed, note = row.get("tokens_per_s") or 0.0, where(folder)
    return Seen(name, found["state"], step, steps, max(0, steps - step) * symbols, speed, note)


def where(folder: Path) -> str:
    pid, host = holder(folder) or ("?", "?")
    return ", ".join(filter(None, [rundir.status(folder).get("job", ""), f"pid {pid} on {host}"]))


def span(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{max(1, minutes)} min"


def told(home: Path) -> str:
    """What a person reads of one sweep."""
    seen = [see(*pair) for pair in folders(home).items()]
    counts = Counter(one.state for one in seen)
    parts = [f"{counts['finished']}/{len(seen)} finished"] + [f"{counts[s]} {s}" for s in FIRST if counts[s]]
    steps, speed = sum(one.steps for one in seen), sum(one.speed for one in seen)
    done = sum(one.steps if one.state == "finished" else one.step for one in seen)
    engine = files.load(home / "plan.json").get("engine", {}).get("name", "local")
    head = f"{home.parent.name}/{home.name} ({engine}): {', '.join(parts)}; {done / max(1, steps):.0%} of all steps"
    if speed:
        head += f", about {span(sum(one.symbols for one in seen) / speed)} left at the present speed"
    open_runs = sorted((one for one in seen if one.state != "finished"), key=lambda one: FIRST.index(one.state))
    lines = tabulate([one.line() for one in open_runs[:MOST_LINES]], tablefmt="plain", disable_numparse=True)
    more = f"  and {len(open_runs) - MOST_LINES} more" if len(open_runs) > MOST_LINES else ""
    return "\n".join(filter(None, [head, lines, more]))


def parser(program: str, about: str) -> argparse.ArgumentParser:
    """The arguments that choose sweeps."""
    found = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    found.add_argument("runs", nargs="?", type=Path, default=Path("runs"), help="run folders")
    found.add_argument("--sweep", help="only the sweep of that name")
    found.add_argument("--scale", help="only that scale")
    return found


def show(asked: argparse.Namespace) -> int:
    for home in find(asked.runs, asked.sweep, asked.scale):
        print(told(home), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(in_one_line(show, parser("engine.status", "How far sweeps are.").parse_args()))
