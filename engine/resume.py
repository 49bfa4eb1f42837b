"""Goes on with sweeps whose driver has died, from their folders alone: no command line is needed.

python -m engine.resume [RUNS] [--sweep NAME] [--scale NAME] [--engine NAME]

What still runs is followed and not started twice; what has ended is left alone.
"""

import argparse
import sys
from pathlib import Path

import yaml

from cli import ROOT, in_one_line
from config import UserError
from engine import launch
from engine.job import OK, USER_ERROR
from engine.plan import Job
from engine.status import find, folders, parser
from storage import files, frozen, rundir
from storage.files import warn


def options_of(home: Path, engine: str | None) -> tuple[str, dict]:
    """Name and options of the engine: those that the sweep was started with, or of another engine its file's."""
    before = files.load(home / "plan.json").get("engine", {})
    name = engine or before.get("name", "local")
    if name == before.get("name"):
        return name, {key: value for key, value in before.items() if key != "name"}
    path = ROOT / "conf" / "hydra" / "launcher" / f"{name}.yaml"
    if not path.exists():
        raise UserError(f"--engine {name}: unknown. Allowed: {', '.join(launch.ENGINES)}")
    there = yaml.safe_load(path.read_text())
    return name, {key: value for key, value in there.items() if key not in ("_target_", "engine", "dry")}


def jobs(home: Path) -> tuple[list[Job], list[str]]:
    """The frozen jobs of a sweep, and a line for each run that cannot go on."""
    found, bad = [], []
    for folder in folders(home).values():
        try:
            config = frozen.thaw(folder)
            config.runs_dir = str(home.parent.parent)  # where it lies now
            found.append(Job(config, folder))
        except UserError as error:
            bad.append(str(error))
    return found, bad


def go_on(home: Path, engine: str | None) -> int:
    """Trains what is left of one sweep and reports. Returns the exit status."""
    plan, bad = jobs(home)
    for line in bad:
        warn(line)
    todo = [job for job in plan if not rundir.has_ended(job.folder)]
    print(f"{home.parent.name}/{home.name}: {len(plan) - len(todo)} done before, {len(todo)} to train", flush=True)
    if not todo:
        return USER_ERROR if bad else OK
    name, options = options_of(home, engine)
    runner = launch.build(name, options)
    runner.connect()
    rundir.write_plan(home, [], {"name": name, **options})
    return max(launch.train(plan, todo, runner), USER_ERROR if bad else OK)


def resume(asked: argparse.Namespace) -> int:
    status = OK
    for home in find(asked.runs, asked.sweep, asked.scale):
        status = max(status, go_on(home, asked.engine))
        if status > 128:  # asked to stop
            break
    return status


if __name__ == "__main__":
    arguments = parser("engine.resume", "Go on with sweeps whose driver has died.")
    arguments.add_argument("--engine", help="another engine than the sweep was started with")
    sys.exit(in_one_line(resume, arguments.parse_args()))
