"""What many runs cost: the driver of a sweep of jobs that do nothing, and the tables of as many finished runs.

python -m bench.many results 10000      run folders by the thousand, in ten sweeps, then `make results` over them
python -m bench.many sweep 10000        the same in one sweep
python -m bench.many driver 100000      a sweep from its command line to its tables, no job of it trains

What it says stands in docs/growth.md. One finished run is written; all others are copies
with names and numbers of their own.
"""

import argparse
import io
import json
import os
import random
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

import cli
from bench.cases import Sizes
from bench.process import timed
from cli import in_one_line
from config import to_plain
from engine import launch
from engine.plan import Job, require_distinct
from engine.pool import Pool
from engine.task import Task
from storage import files, frozen, rundir, seal
from storage.runlog import RunLog
from training import cost

ROOT = Path(__file__).parents[1]
SLOTS = 1000  # jobs at once of `driver`
TRAINED = ("baseline", "gelu", "layernorm", "postnorm", "learned")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.many", description="Measure what many runs cost.")
    parser.add_argument("what", choices=MEASURES)
    parser.add_argument("count", type=int, help="runs")
    options = parser.parse_args(arguments)
    return in_one_line(measure, MEASURES[options.what], options.count)


def measure(what, count: int) -> int:
    with TemporaryDirectory(prefix="oneswap-") as folder:
        print(json.dumps(what(count, Path(folder)), indent=1))
    return 0


def results(count: int, folder: Path, sweeps: int) -> dict:
    """Seconds, memory and files of `make results` over `count` finished runs: the first time, and once more."""
    runs, made = folder / "runs", folder / "results"
    jobs = Sizes(folder)
    template = finished(jobs.job("scale=cpu", f"runs_dir={folder / 'one'}"))
    for n in range(sweeps):
        spread_out(template, runs / "cpu" / f"sweep{n}", count // sweeps, draw=n)
    places = ["--runs", runs, "--results", made, "--readme", made / "README.md"]
    command = [sys.executable, "-m", "analysis.report", *map(str, places)]
    found = {"runs": count, "sweeps": sweeps, "folders": size(runs)}
    for sitting in ("first", "again"):
        said, seconds = timed(command, ROOT, dict(os.environ))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
        found[sitting] = {**seconds, "peak_mb": peak, "lines": len(said.splitlines())}
    return found | {"results": size(made), "records": size(made, "records.jsonl")}


def finished(job: Job) -> Path:
    """The folder of a run that has all rows of its length, as a real one has; nothing is trained."""
    c, log = job.config, RunLog(job.folder, to_plain(job.config))
    mine = cost.of_config(c.model, c.run.vocab_size)
    with log:
        log.begin({"commit": "c0ffee", "code_sha256": "1a" * 32, "device": "cpu", "threads": 1, "precision": "fp32"})
        evals = []
        for step in range(c.train.steps + 1):
            if step and step % c.train.log_every == 0:
                log.log(
                    {"step": step, "loss": 2.0 + 1 / step, "grad_norm": 0.51, "lr": c.train.lr, "tokens_per_s": 2e4}
                )
            if step in (0, *c.train.checkpoints, c.train.steps):
                evals.append([step, 2.5 + 4 / (step / 20 + 1)])
                log.log({"step": step, "val_bpb": evals[-1][1], "val_nats": 1.8})
        log.finish(
            {
                "final_bpb": evals[-1][1], "best_bpb": evals[-1][1], "best_step": evals[-1][0], "evals": evals,
                "passes": 0.8, "train_s": 61.0, "tokens_per_s": 2e4, "peak_mb": 412.5, "params": mine.params,
                "baseline_non_embedding": mine.non_embedding, "flops_per_token": mine.flops_per_token,
                "kv_bytes_per_token": mine.kv_bytes_per_token, "anchors": {"gzip": 3.2, "bzip2": 2.8, "xz": 2.9},
                "protocol": {"context": c.model.context, "stride": c.model.context, "precision": "fp32"},
            },
            {},
        )  # fmt: skip
    return job.folder


def spread_out(template: Path, home: Path, count: int, draw: int) -> None:
    """Copies of a run's folder as a sweep of `count` runs, each with numbers of its own."""
    texts = {name: (template / name).read_bytes() for name in (*seal.SEALED, "summary.json")}
    rng, names = random.Random(draw), []
    for variant, seed in variants(count):
        folder, mine = rundir.place(home, variant, seed), renamed(texts, variant, seed, rng.gauss(0, 0.02))
        folder.mkdir(parents=True)
        names.append(f"{variant}/seed{seed}")
        for name, data in mine.items():
            (folder / name).write_bytes(data)
        seal.seal(folder, mine["summary.json"])
    (home / "plan.json").write_bytes(files.to_json({"runs": names}))


def variants(count: int, seeds: int = 10) -> Iterator[tuple[str, int]]:
    """(variant, seed) of a sweep: the swaps, at as many values of another key as the count needs."""
    groups = -(-count // (seeds * len(TRAINED)))
    widths = [f",model.rope_base={10_000 + n}" * (groups > 1) for n in range(groups)]
    all_runs = [(swap + width, seed) for width, swap, seed in product(widths, TRAINED, range(seeds))]
    yield from all_runs[:count]


def renamed(texts: dict[str, bytes], variant: str, seed: int, shift: float) -> dict[str, bytes]:
    """The files of another run: its names, and its numbers higher by `shift`."""
    swap, _, axis = variant.partition(",")
    summary = json.loads(texts["summary.json"])
    for key in ("final_bpb", "best_bpb"):
        summary[key] += shift
    summary["evals"] = [[step, bpb + shift] for step, bpb in summary["evals"]]
    rows = [json.loads(line) for line in texts["metrics.jsonl"].splitlines()]
    rows = [row | {"val_bpb": row["val_bpb"] + shift} if "val_bpb" in row else row for row in rows]
    config = yaml.load(texts["config.yaml"], files.YAML)
    key, _, value = axis.partition("=")
    config["seed"], config["about"]["label"] = seed, swap
    config["run"] |= {"swap": swap, "variant": variant, "axes": {key: float(value)} if axis else {}}
    return texts | {
        "summary.json": files.to_json(summary),
        "metrics.jsonl": b"".join(files.to_json(row, None) for row in rows),
        "config.yaml": yaml.dump(config, Dumper=yaml.CSafeDumper).encode(),
    }


def size(folder: Path, name: str = "*") -> dict:
    found = [path.stat().st_size for path in folder.rglob(name) if path.is_file()]
    return {"files": len(found), "mb": sum(found) / 1e6}


def driver(count: int, folder: Path) -> dict:
    """CPU seconds of a sweep's driver by its parts, for `count` jobs that end at once with nothing done."""
    found, clock = {"jobs": count}, time.process_time
    named = [(variant.partition(",")[::2], seed) for variant, seed in variants(count, seeds=100)]
    overrides = [[f"swap={swap}", *filter(None, [axis]), f"seed={seed}"] for (swap, axis), seed in named]
    sizes, axes = Sizes(folder), ["model.rope_base"] * (count > 100 * len(TRAINED))
    places = [
        "scale=smoke",
        "text=file",
        "wandb.mode=disabled",
        f"runs_dir={folder}/runs",
        f"results_dir={folder}/results",
    ]

    def compose(items: list[str]):
        composed = cli.compose([*items, *places])
        composed.text.path = str(sizes.text)
        return composed

    def timed_as(name: str, call, *given):
        started = clock()
        result = call(*given)
        found[name] = {"s": clock() - started, "ms_a_job": 1000 * (clock() - started) / count}
        return result

    plan = timed_as("plan", sizes.freezer.plan, compose, overrides, axes)
    timed_as("distinct", require_distinct, plan)
    states = timed_as("states", lambda: [frozen.state(job.folder, to_plain(job.config)) for job in plan])
    timed_as("write_down", launch.write_down, plan, plan, {"name": "local"})
    with redirect_stdout(io.StringIO()):
        timed_as("pool", Pool(plan, Idle()).run)
    timed_as("states_again", lambda: [frozen.state(job.folder, to_plain(job.config)) for job in plan])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return found | {"missing": states.count("missing"), "peak_mb": peak, "folders": size(folder / "runs")}


class Idle:
    """An engine whose jobs end at once and leave nothing."""

    look_every, gpus = 0.2, False

    def room(self, job: Job, running: int) -> int:
        return SLOTS - running

    def adopt(self, jobs: list[Job]) -> list[Task]:
        return []

    def start(self, packs: list[list[Job]]) -> list[Task]:
        return [Nothing(jobs) for jobs in packs]


class Nothing(Task):
    def ended(self) -> str:
        return ""


MEASURES = {"results": partial(results, sweeps=10), "sweep": partial(results, sweeps=1), "driver": driver}

if __name__ == "__main__":
    sys.exit(main())
