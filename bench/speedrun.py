"""Time to quality: seconds until a run scores 1.88 nats per character over the whole dev part of tinyshakespeare.

python -m bench.speedrun                      one run of conf/scale/speedrun.yaml with swap=gelu
python -m bench.speedrun --peer CHECKOUT      and, in turn with it, nanoGPT's own CPU recipe
python -m bench.speedrun --seeds 0,1,2        three rounds

"process" is all that a person waits for: imports, text, training, evaluation, files; the ratio of its medians is the
result. "training" is the steps alone. The peer takes a thread for each core, as it does by itself, and its own seed.
On a busy machine those threads wait for one another and the ratio flatters us: the load is written down, and "CPU",
with OMP_NUM_THREADS=1 set for the peer, is the fair reading there.
"""

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import cli
from analysis.formats import markdown_table
from bench import nanogpt, speedrun_peer
from bench.process import timed
from bench.speedrun_peer import Peer
from config import Kind, UserError
from engine.plan import Freezer, Job, require_distinct, slug
from engine.task import environment
from storage import files, rundir
from training.machine import cores

ROOT = Path(__file__).parents[1]
TARGET = 1.88  # nats per character, about the best that the peer's recipe finds in its own few batches
SECONDS = ("train_s", "wall_s", "cpu_s")  # training alone; the whole process, by the clock and of all its threads
RECIPE = ("scale=speedrun", "swap=gelu", "wandb.mode=disabled")


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 1 where a run missed the target, 2 for a mistake of the person who typed it."""
    parser = argparse.ArgumentParser(prog="python -m bench.speedrun", description="Seconds to a given quality.")
    parser.add_argument("--peer", type=Path, help="a checkout of nanoGPT, to run its CPU recipe as well")
    parser.add_argument("--text", default="tinyshakespeare", help="a name in conf/text, or a file")
    parser.add_argument("--seeds", default="0", help="one round for each, with commas between")
    parser.add_argument("--target", type=float, default=TARGET, help="nats per character")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="knobs of config.py")
    return cli.in_one_line(race, parser.parse_intermixed_args(arguments))


def race(options: argparse.Namespace) -> int:
    """All rounds, the table and the record. Raises UserError before anything is started, where it can."""
    if options.peer:
        nanogpt.require(options.peer, *speedrun_peer.CODE)
    with TemporaryDirectory(prefix="oneswap-") as scratch:
        choice = [*RECIPE, *text_choice(options.text), *options.overrides]
        lines = [[*choice, f"seed={seed}", f"runs_dir={scratch}/runs"] for seed in options.seeds.split(",")]
        freezer = Freezer()
        jobs = [freezer.freeze(cli.compose(line)) for line in lines]
        require_distinct(jobs)
        text = parts(freezer)
        peer = options.peer and Peer(options.peer, Path(scratch, "peer"), *text)
        record = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "target": options.target,
            "overrides": choice,
            "cores": cores(),
            "load_before": os.getloadavg()[0],
            "rounds": [one_round(job, line, peer) for job, line in zip(jobs, lines, strict=True)],
        }
        record |= {"provenance": files.load(jobs[0].folder / "provenance.json"), **verdict(record)}
        record |= peer.facts() if peer else {}
        print(table(record), write(record, jobs), sep="\n\n")
    for missed in record["missed"]:
        print(f"oneswap: {missed}", file=sys.stderr)
    return 1 if record["missed"] else 0


def text_choice(text: str) -> list[str]:
    """Overrides for a name in conf/text or a path, which goes by the environment: it may hold any character."""
    if (ROOT / "conf/text" / f"{text}.yaml").exists():
        return [f"text={text}"]
    os.environ["TEXT"] = str(Path(text).expanduser().resolve())
    return ["text=file", "text.path=${oc.env:TEXT}"]


def parts(freezer: Freezer) -> tuple[str, str]:
    """The training and the dev part of the text that all rounds share."""
    (text,) = freezer.texts.values()
    if text.kind is not Kind.char:
        raise UserError(f"text.kind={text.kind.value}: the target is in nats per character, so it must be char")
    return text.decode(text.train), text.dev_text.decode()


def one_round(job: Job, line: list[str], peer: Peer | None) -> dict:
    """One run of this project, then one of the peer: nats per character and seconds of each."""
    _, seconds = timed([sys.executable, "train.py", *line], ROOT, environment(job))
    found = rundir.read(job.folder)
    nats = [row["val_nats"] for row in rundir.read_rows(job.folder) if "val_nats" in row][-1]
    ours = {"nats": nats, "train_s": found["summary"]["train_s"], **seconds}
    print(f"oneswap {job.name}: {said(ours)}", flush=True)
    if not peer:
        return {"seed": job.config.seed, "ours": ours}
    theirs = peer.run()
    print(f"nanoGPT: {said(theirs)}", flush=True)
    return {"seed": job.config.seed, "ours": ours, "peer": theirs}


def said(run: dict) -> str:
    return f"{run['nats']:.4f} nats per character, {run['train_s']:.1f} s of training, {run['wall_s']:.1f} s in all"


def verdict(record: dict) -> dict:
    """Medians over the rounds, what missed the target, and how many times as long the peer takes."""
    rounds, target = record["rounds"], record["target"]
    sides = [side for side in ("ours", "peer") if side in rounds[0]]
    found = {
        f"median_{side}": {key: median(one[side][key] for one in rounds) for key in rounds[0][side]} for side in sides
    }
    if "peer" in sides:
        found["ratio"] = {key: found["median_peer"][key] / found["median_ours"][key] for key in SECONDS}
    late = [one for one in rounds if one["ours"]["nats"] > target]
    missed = [f"seed {one['seed']} missed the target: {one['ours']['nats']:.4f} > {target}" for one in late]
    return {**found, "missed": missed}


def table(record: dict) -> str:
    """A row a run, the medians, the ratio, and how busy the machine was."""
    heads = ["run", "nats per character", "training, s", "process, s", "CPU, s"]
    named = [(f"oneswap, seed {one['seed']}", one["ours"]) for one in record["rounds"]]
    named += [("nanoGPT", one["peer"]) for one in record["rounds"] if "peer" in one]
    titles = {"median_ours": "oneswap, median", "median_peer": "nanoGPT, median"}
    named += [(title, record[key]) for key, title in titles.items() if key in record]
    rows = [[name, f"{run['nats']:.4f}", *(f"{run[key]:.1f}" for key in SECONDS)] for name, run in named]
    if ratio := record.get("ratio"):
        rows.append(["nanoGPT / oneswap", "", *(f"{ratio[key]:.2f}" for key in SECONDS)])
    load = f"Load before the start: {record['load_before']:.1f} on {record['cores']} cores."
    return f"{markdown_table((heads, rows))}\n\n{load}"


def write(record: dict, jobs: list[Job]) -> str:
    """The record, and each run's metrics beside it. Returns the line that says where."""
    home = Path(jobs[0].config.results_dir, "speedrun")
    name = slug(f"{record['provenance']['cpu']} {record['cores']} cores").lower()
    for job in jobs:
        files.save(home / f"{name}-seed{job.config.seed}.jsonl", (job.folder / "metrics.jsonl").read_bytes())
    files.save(home / f"{name}.json", files.to_json(record))
    return f"Written: {home / name}.json, and the metrics of each run beside it."


if __name__ == "__main__":
    sys.exit(main())
