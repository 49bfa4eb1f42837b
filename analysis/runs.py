"""Run folders to records: every planned run gives one, whatever its folder holds.

`records.jsonl`, one record a line, is all that tables and figures are built from.
"""

import json
import math
import os
import re
import tempfile
from collections import Counter
from pathlib import Path
from urllib.parse import quote, unquote

import yaml

from config import UserError

STATES = ("finished", "diverged", "failed", "interrupted", "running")
FILES = ("config.yaml", "provenance.json", "status.json", "summary.json", "metrics.jsonl")
NOT_CONFIG = ("run", "about", "wandb", "name", "runs_dir", "results_dir")  # names and places, no knobs
NUMBERS = (  # of summary.json
    "final_bpb", "best_bpb", "best_step", "passes", "params.total", "params.non_embedding", "baseline_non_embedding",
    "flops_per_token", "kv_bytes_per_token", "tokens_per_s", "peak_mb",
)  # fmt: skip
PROTOCOL = ("context", "stride", "precision", "kind", "text_sha256")  # how a run was evaluated
MACHINE = ("compile", "threads", "device", "device_name", "precision")  # what it was trained on

YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where it is there: ten times as fast


def gather(folder: Path) -> list[dict]:
    """The records of one sweep's folder `<runs>/<scale>/<sweep>`: planned runs in plan order, then the others.

    Raises UserError for a plan.json that cannot be read: without it nobody knows how many runs there should be.
    """
    names = planned(folder)
    found = [(unquote(run.parent.name), int(run.name[4:])) for run in folder.glob("[!.]*/seed*") if is_run(run)]
    found.sort(key=lambda name: (name[0].split(",")[0] != "baseline", *name))
    records = [read(folder, *name) for name in dict.fromkeys(names + found)]
    lenders = {record["variant"]: record for record in reversed(records) if record.get("config")}
    return [record if record.get("config") else lend(record, lenders.get(record["variant"])) for record in records]


def lend(record: dict, sibling: dict | None) -> dict:
    """A run without a readable config.yaml takes label, knobs and axes from a seed of the same variant."""
    return record | {key: sibling[key] for key in ("about", "config", "axes", "text")} if sibling else record


def is_run(folder: Path) -> bool:
    return re.fullmatch(r"seed(0|[1-9]\d*)", folder.name) is not None and folder.is_dir()


def planned(folder: Path) -> list[tuple[str, int]]:
    """(variant, seed) of each run in plan.json, which may be absent."""
    path = folder / "plan.json"
    if not path.exists():
        return []
    try:
        names = json.loads(path.read_bytes())["runs"]
        parts = [re.fullmatch(r"(.+)/seed(\d+)", name, re.DOTALL).groups() for name in names]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f'{path}: damaged; it must hold {{"runs": ["<variant>/seed<k>", ...]}}') from None
    return [(variant, int(seed)) for variant, seed in parts]


def read(home: Path, variant: str, seed: int) -> dict:
    """The record of one run. What cannot be read makes its state "damaged", with the file's name as the reason."""
    record = {"scale": home.parent.name, "sweep": home.name, "variant": variant, "seed": seed}
    record |= {"swap": variant.split(",")[0], "axes": axes_of(variant), "state": "missing", "reason": "no folder"}
    run = home / quote(variant, safe="=,._-+") / f"seed{seed}"
    if not run.is_dir():
        return record
    bad: list[str] = []
    config, provenance, status, summary = (mapping(run / name, bad) for name in FILES[:4])
    evals, curve = metrics(run / FILES[4], status.get("state") == "finished", bad)
    state, reason = judge(status, summary, evals, bad)
    about, text, frozen = (config.get(key) or {} for key in ("about", "text", "run"))
    return record | {
        "axes": {str(key): value for key, value in (frozen.get("axes") or record["axes"]).items()},
        "state": state,
        "reason": reason,
        "about": about,
        "config": flat({key: value for key, value in config.items() if key not in NOT_CONFIG}),
        "text": str(text.get("name", "")),
        "evals": evals,
        "curve": curve,
        "summary": summary,
        "provenance": provenance,
    }


def mapping(path: Path, bad: list[str]) -> dict:
    """A JSON or YAML file's mapping; {} where there is none, and a word in `bad` where it holds something else."""
    try:
        text = path.read_bytes().decode()
        found = yaml.load(text, YAML) if path.suffix == ".yaml" else json.loads(text, parse_constant=lambda name: None)
        if path.suffix == ".yaml":
            nested = [found.get(key) or {} for key in ("about", "text", "run")]
            nested.append(nested[-1].get("axes") or {})
            found = found if all(isinstance(section, dict) for section in nested) else None
        if isinstance(found, dict):
            return found
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, yaml.YAMLError):
        pass
    bad.append(f"{path.name} cannot be read")
    return {}


def metrics(path: Path, ended: bool, bad: list[str]) -> tuple[list, list]:
    """[[step, dev bits per byte], ...] and [[step, training loss], ...].

    The last line of a run that has not ended may be half-written: it is passed over.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], []
    except OSError:
        lines = [b"{"]
    if not ended or not lines[-1]:
        lines.pop()
    evals, curve = [], []
    try:
        for line in lines:
            row = json.loads(line, parse_constant=lambda name: None)
            for key, rows in (("val_bpb", evals), ("loss", curve)):
                if key in row:
                    rows.append([int(row["step"]), None if row[key] is None else float(row[key])])
    except (ValueError, TypeError, KeyError):
        bad.append(f"{path.name} cannot be read")
    return evals, curve


def judge(status: dict, summary: dict, evals: list, bad: list[str]) -> tuple[str, str]:
    """A run's state and the reason for it, from what lies in its folder."""
    state = status.get("state")
    if not bad and state == "finished":
        if not summary:
            bad = ["summary.json is not there"]
        elif lacking := lacks(summary):
            bad = [f"summary.json lacks {', '.join(lacking)}"]
        elif not evals or evals[-1][0] != status.get("steps", evals[-1][0]) or any(bpb is None for _, bpb in evals):
            bad = ["metrics.jsonl lacks evaluations"]
    if bad:
        return "damaged", "; ".join(bad)
    if not status:
        return "missing", "not started"
    if state not in STATES:
        return "damaged", f"status.json: unknown state {state}"
    return state, str(status.get("reason") or "")


def lacks(summary: dict) -> list[str]:
    """What the tables need of a finished run and do not find as a number or, for the last two, as a mapping."""
    numbers = flat(summary)
    return [key for key in NUMBERS if not isinstance(numbers.get(key), int | float)] + [
        key for key in ("protocol", "anchors") if not isinstance(summary.get(key), dict)
    ]


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


def flat(tree: dict, prefix: str = "") -> dict:
    """Dotted keys to values."""
    found = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def guard(records: list[dict]) -> list[dict]:
    """The records, with finished runs that were not evaluated or trained like most of them marked "left out".

    Where two ways are equally common, the baseline's counts.
    """
    finished = [record for record in records if record["state"] == "finished"]
    if not finished:
        return records
    ways = Counter(conditions(record) for record in finished)
    base = Counter(conditions(record) for record in finished if record["swap"] == "baseline")
    usual = max(ways, key=lambda way: (ways[way], base[way]))
    return [
        record | {"state": "left out", "reason": unlike(conditions(record), usual)}
        if record["state"] == "finished" and conditions(record) != usual
        else record
        for record in records
    ]


def conditions(record: dict) -> tuple:
    """What must be equal in all runs of a table, as (name, value) pairs."""
    protocol, machine = record["summary"].get("protocol", {}), record["provenance"]
    found = [(f"evaluation {key}", str(protocol.get(key))[:12]) for key in PROTOCOL]
    return tuple(found + [(key, str(machine.get(key))) for key in MACHINE])


def unlike(way: tuple, usual: tuple) -> str:
    pairs = [(name, mine, most) for (name, mine), (_, most) in zip(way, usual, strict=True) if mine != most]
    return ", ".join(f"{name} {mine or 'none'} where the table has {most or 'none'}" for name, mine, most in pairs)


def write(records: list[dict], path: Path) -> None:
    """One record a line, keys sorted, floats as they are: the same records give the same bytes."""
    save(path, "".join(json.dumps(record, sort_keys=True, default=str) + "\n" for record in records).encode())


def load(path: Path) -> list[dict]:
    """Raises UserError naming the line that is no record."""
    return parse(path.read_bytes(), path)


def parse(data: bytes, path: Path) -> list[dict]:
    records = []
    for n, line in enumerate(data.splitlines(), 1):
        try:
            record = json.loads(line)
            record["variant"], record["seed"], record["state"], record["swap"], record["axes"]
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{path}: line {n} is no record; `git checkout` brings back the committed file") from None
        records.append(record)
    return records


def save(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. Raises UserError where it cannot be written."""
    name = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        if name:
            os.unlink(name)
        if isinstance(error, OSError):
            raise UserError(f"{path} cannot be written: {error.strerror}") from error
        raise
