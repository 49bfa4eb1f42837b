"""Run folders to records: every planned run gives one, whatever its folder holds.

`records.jsonl`, one record a line, is all that tables and figures are built from.
"""

import json
import math
import re
from pathlib import Path

from config import UserError
from storage import files, rundir

BASELINE = "baseline"
RATE = "train.lr"  # the swept key that is tuned for each variant, not compared
STATES = (*rundir.ENDED, "failed", "interrupted", "running", "queued", "missing", "damaged")
AGAIN = "remove the folder to run it again"
NOT_CONFIG = ("run", "about", "wandb", "name", "runs_dir", "results_dir")  # names and places, no knobs
NUMBERS = (  # of summary.json
    "final_bpb", "best_bpb", "best_step", "passes", "params.total", "params.non_embedding", "baseline_non_embedding",
    "flops_per_token", "kv_bytes_per_token", "tokens_per_s", "peak_mb",
)  # fmt: skip


def gather(home: Path) -> list[dict]:
    """The records of one sweep's folder `<runs>/<scale>/<sweep>`: planned runs in plan order, then the others.

    Raises UserError for a plan.json that cannot be read: without it nobody knows how many runs there should be.
    """
    names = planned(home)
    found = [(rundir.variant_of(run), int(run.name[4:])) for run in home.glob("[!.]*/seed*") if is_run(run)]
    found.sort(key=lambda name: (swap_of(name[0]) != BASELINE, *name))
    records = [read(home, *name) for name in dict.fromkeys(names + found)]
    lenders = {record["variant"]: record for record in reversed(records) if record.get("config")}
    return [record if record.get("config") else lend(record, lenders.get(record["variant"])) for record in records]


def lend(record: dict, sibling: dict | None) -> dict:
    """A run without a readable config.yaml takes label, knobs and axes from a seed of the same variant."""
    return record | {key: sibling[key] for key in ("about", "config", "axes", "text")} if sibling else record


def is_run(folder: Path) -> bool:
    return re.fullmatch(r"seed(0|[1-9]\d*)", folder.name) is not None and folder.is_dir()


def planned(home: Path) -> list[tuple[str, int]]:
    """(variant, seed) of each run in plan.json, which may be absent."""
    path = home / "plan.json"
    if not path.exists():
        return []
    try:
        names = files.load(path)["runs"]
        parts = [re.fullmatch(r"(.+)/seed(\d+)", name, re.DOTALL).groups() for name in names]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f'{path}: damaged; it must hold {{"runs": ["<variant>/seed<k>", ...]}}') from None
    return [(variant, int(seed)) for variant, seed in parts]


def read(home: Path, variant: str, seed: int) -> dict:
    """The record of one run. Its state is what storage.rundir says, "damaged" also where tables lack something."""
    record = {"scale": home.parent.name, "sweep": home.name, "variant": variant, "seed": seed}
    record |= {"swap": swap_of(variant), "axes": axes_of(variant), "state": "missing", "reason": "no folder"}
    run = rundir.place(home, variant, seed)
    if not run.is_dir():
        return record
    found = rundir.read(run)
    record |= {"state": found["state"], "reason": str(found["reason"] or ""), "summary": found["summary"]}
    record |= {"evals": [], "curve": [], "provenance": {}}
    bad = knobs(record, found["config"])
    if record["state"] not in STATES:
        bad.append(f"status.json: unknown state {record['state']}")
    if record["state"] == "finished" and (lacking := lacks(record["summary"])):
        bad.append(f"summary.json lacks {', '.join(lacking)}")
    if bad:
        record |= {"state": "damaged", "reason": "; ".join(bad)}
    faults = [*measured(record, run), *made_by(record, run)]
    if record["state"] == "damaged" or (faults and record["state"] in rundir.ENDED):
        record["reason"] = "; ".join([*filter(None, [record["reason"]]), *faults, AGAIN])
    return record


def knobs(record: dict, config: dict) -> list[str]:
    """Fills in about, config, text and axes from what stands in config.yaml. Returns what is wrong with it."""
    record |= {"about": {}, "config": {}, "text": ""}
    try:
        about, text, frozen = (config.get(key) or {} for key in ("about", "text", "run"))
        axes = {str(key): value for key, value in (frozen.get("axes") or record["axes"]).items()}
        record |= {"about": dict(about), "text": str(text.get("name", "")), "axes": axes}
    except (ValueError, TypeError, AttributeError):
        return [] if record["state"] == "damaged" else ["config.yaml is damaged: not a run's configuration"]
    record["config"] = files.flatten({key: value for key, value in config.items() if key not in NOT_CONFIG})
    return []


def made_by(record: dict, run: Path) -> list[str]:
    """Fills in which code and machine made the run. Returns what is wrong with provenance.json."""
    try:
        record["provenance"] = files.load(run / "provenance.json")
    except ValueError as error:
        return [str(error)]
    return []


def measured(record: dict, run: Path) -> list[str]:
    """Fills in evals, [[step, dev bits per byte], ...], and curve, [[step, training loss], ...].

    A finished run counts by its summary, here as in the engine: its evaluations come from there.
    Returns what metrics.jsonl has lost.
    """
    faults = []
    try:
        for row in rundir.read_rows(run):
            key = rundir.kind(row)
            record["evals" if key == "val_bpb" else "curve"].append([int(row["step"]), finite(row[key])])
    except (ValueError, TypeError, OSError) as error:
        faults = [str(error) if "metrics.jsonl" in str(error) else "metrics.jsonl is damaged"]
    if record["state"] == "finished":
        kept = record["summary"]["evals"]
        if kept != record["evals"]:
            faults = faults or ["metrics.jsonl lacks evaluations that summary.json has"]
        record["evals"] = kept
    return faults


def finite(value) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def lacks(summary: dict) -> list[str]:
    """What the tables need of a finished run and do not find as numbers, pairs of numbers or mappings."""
    numbers = files.flatten(summary)
    missing = [key for key in NUMBERS if not is_number(numbers.get(key))]
    missing += [key for key in ("protocol", "anchors") if not isinstance(summary.get(key), dict)]
    evals = summary.get("evals")
    sound = isinstance(evals, list) and evals and all(isinstance(pair, list) and len(pair) == 2 for pair in evals)
    return missing + ["evals"] * (not (sound and all(is_number(x) for pair in evals for x in pair)))


def is_number(value) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def swap_of(variant: str) -> str:
    return variant.split(",")[0]


def axes_of(variant: str) -> dict:
    """The swept values that a variant's name tells: numbers as numbers, anything else as text."""
    pairs = (part.partition("=") for part in re.split(r",(?=[\w.]+=)", variant)[1:])
    return {key: number(value) for key, _, value in pairs}


def number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if math.isfinite(value) else text
    return text


# ---- records.jsonl ----


def key_of(record: dict) -> tuple[str, int]:
    return record["variant"], record["seed"]


def name_of(record: dict) -> str:
    return f"{record['variant']}/seed{record['seed']}"


def write(records: list[dict], path: Path) -> None:
    """One record a line, keys sorted, floats as they are: the same records give the same bytes."""
    files.save(path, "".join(json.dumps(record, sort_keys=True, default=str) + "\n" for record in records).encode())


def load(path: Path) -> list[dict]:
    """Raises UserError naming the line that is no record."""
    try:
        return parse(path.read_bytes(), path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def parse(data: bytes, path: Path) -> list[dict]:
    records = []
    for n, line in enumerate(data.splitlines(), 1):
        try:
            record = json.loads(line)
            record["variant"], record["seed"], record["state"], record["swap"], record["axes"]
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{path}: line {n} is no record; bring back the file from git, or remove it") from None
        records.append(record)
    return records
