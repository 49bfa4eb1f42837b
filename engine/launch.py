"""A sweep from its plan to its tables: freeze every configuration, skip what is done, run the rest, report."""

from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile

import torch
from omegaconf import DictConfig, OmegaConf

from analysis import runs
from config import UserError, WandbMode, lookup, to_plain
from engine.job import FAILED, OK, USER_ERROR, attempt
from engine.plan import Compose, Freezer, Job, require_distinct
from engine.pool import Pool, describe
from engine.progress import Board
from engine.task import Engine
from storage import frozen, mirror, rundir
from storage.files import writing
from training import cost
from training.stopping import Stopped

ENGINES = {"local": ("engine.local", "Local"), "slurm": ("engine.slurm", "Slurm"), "ray": ("engine.ray", "Ray")}


def build(engine: str, options: dict) -> Engine:
    """The engine of that name. Only its own module is imported: Ray's takes a second.

    Raises UserError: it is not installed, or an option is no good.
    """
    module, name = lookup(ENGINES, engine, "hydra/launcher")
    return getattr(import_module(module), name)(**options)


def sweep(
    compose: Compose,
    overrides: list[list[str]],
    declared: dict,
    engine: str = "local",
    options: dict | None = None,
    dry: bool = False,
) -> int:
    """Run a sweep to its end. Returns the exit status: 0 only where every planned run is finished.

    `overrides`, one list a job, and `declared` tell which keys are swept; `options` are the engine's.
    """
    options = options or {}
    runner = build(engine, options)
    freezer, axes = Freezer(elsewhere=bool(runner.gpus)), swept_keys(overrides, declared)
    plan = freezer.plan(compose, overrides, axes)
    require_distinct(plan)
    states = {job.folder: frozen.state(job.folder, to_plain(job.config)) for job in plan}
    todo = [job for job in plan if states[job.folder] not in rundir.ENDED]
    for text in freezer.texts.values():
        print(text)
    print(f"{len(plan)} runs planned, {len(plan) - len(todo)} done before, {len(todo)} to train", flush=True)
    runner.connect()
    if dry:
        return list_jobs(plan, states, todo, runner.side_by_side(plan[0]))
    write_down(plan, todo, {"name": engine, **options})
    return train(plan, todo, runner)


def train(plan: list[Job], todo: list[Job], runner: Engine) -> int:
    """Run the frozen jobs of a plan that are left, then report. Returns the exit status."""
    try:
        Pool(todo, runner).run()
    except Stopped as stopped:
        print("Stopped. The same command goes on from where each run was saved.")
        return stopped.exit_code
    return conclude(plan, todo)


def swept_keys(overrides: list[list[str]], declared: dict) -> list[str]:
    """Keys that a sweep varies besides swap and seed, and besides scale and text, which have folders of their own."""
    values: dict[str, set] = {}
    for job in overrides:
        for item in job:
            key, _, value = item.lstrip("+").partition("=")
            values.setdefault(key, set()).add(value)
    varied = [key for key, seen in values.items() if len(seen) > 1 or key in declared]
    return [key for key in varied if key not in ("swap", "seed", "scale", "text")]


def homes(plan: list[Job]) -> dict[Path, list[Job]]:
    """The jobs by the folder of their sweep: one, unless scale or text is swept."""
    found: dict[Path, list[Job]] = {}
    for job in plan:
        found.setdefault(job.folder.parent.parent, []).append(job)
    return found


def write_down(plan: list[Job], todo: list[Job], engine: dict) -> None:
    """Freeze every configuration into its folder, and the plan, which is the denominator, beside them."""
    results = Path(plan[0].config.results_dir)
    with writing(results):  # told now, not after a night of training
        results.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=results).close()
    mode = WandbMode(mirror.resolve(plan[0].config.wandb.mode.value)) if todo else None  # asked once, not by every job
    for job in todo:
        job.config.wandb.mode = mode
        frozen.freeze(job.folder, to_plain(job.config))
    for home, mine in homes(plan).items():
        rundir.write_plan(home, [job.name for job in mine], engine)


def conclude(plan: list[Job], todo: list[Job]) -> int:
    """Build tables and figures and print them; they name each run that is not finished."""
    from analysis import report  # matplotlib and statsmodels: not for a dry run

    complete = True
    for home, mine in homes(plan).items():
        config = mine[0].config
        built = report.build(Path(config.runs_dir), Path(config.results_dir), home.parent.name, home.name)
        print(built.text)
        complete &= not built.gaps
        if any(job in todo for job in mine):  # else it is logged already
            mirror.report(to_plain(config))
    report.write_index(Path(plan[0].config.results_dir))
    complete &= all(rundir.read(job.folder)["state"] == "finished" for job in plan)
    return OK if complete else FAILED


def list_jobs(plan: list[Job], states: dict[Path, str], todo: list[Job], width: int) -> int:
    """What a sweep would do."""
    for job in plan:
        print(f"  {states[job.folder]:<11} {job.folder}")
    width = min(width, max(1, len(todo)))
    print(f"{width} side by side. {estimate(todo, width)}\nNothing was started.")
    return OK


def estimate(todo: list[Job], width: int) -> str:
    """Time for the jobs, from the FLOPs they take and the speed of finished runs on the same kind of device."""
    if not todo:
        return "Nothing is left to train."
    device = "cuda" if torch.cuda.is_available() else "cpu"
    speeds = [
        record["summary"]["tokens_per_s"] * record["summary"]["flops_per_token"]
        for path in Path(todo[0].config.results_dir).glob("*/*/records.jsonl")
        for record in runs.load(path)
        if record["state"] == "finished" and record["provenance"].get("device") == device
    ]
    if not speeds:
        return "No estimate: no finished run to go by."
    flops = sum(tokens(job) * cost.require_match(job.config)[0].flops_per_token for job in todo)
    minutes = flops / median(speeds) / min(width, len(todo)) / 60
    return (
        f"About {max(1, round(minutes))} min of training, at {median(speeds) / 1e9:.0f} GFLOP/s a run as in results/."
    )


def tokens(job: Job) -> int:
    return job.config.train.steps * job.config.step_symbols


def single(composed: DictConfig) -> int:
    """One run in this process, as `python train.py` without a sweep starts it. Returns the exit status."""
    if not OmegaConf.is_missing(composed.hydra.job, "num"):  # one of many: a launcher of Hydra's own hands them out
        raise UserError(f"a sweep runs with hydra/launcher={' or '.join(ENGINES)}")
    job = Freezer().freeze(composed)
    frozen.freeze(job.folder, to_plain(job.config))
    found = rundir.read(job.folder)
    so_far = f", {found['state']} at step {found['step']}" if found["step"] else ""
    print(f"{job.folder}: {job.config.about.label}, {job.config.train.steps} steps{so_far}", flush=True)
    with Board({job.name: job.config.train.steps}) as board:
        code = attempt([(job.config, job.folder, lambda row: board.row(job.name, row))])
    if code != USER_ERROR:
        print(describe(job))
    if code > 128:
        print("A resume point is saved. The same command goes on from there.")
    return code
