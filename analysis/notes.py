"""What a reader of a sweep's tables must be told besides the numbers, one line each."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from analysis.guard import NOTED, OUT, beside_seam, compared, conditions, differing, frozen, short
from analysis.runs import BASELINE, name_of
from analysis.words import printable, some

if TYPE_CHECKING:
    from analysis.study import Row, Variant

CALLED = {"code_sha256": "code"}


def told(record: dict) -> str:
    """A run's state and why, in words."""
    return printable(f"{record['state']}: {record['reason']}").rstrip(": ")


def gaps(variants: list[Variant]) -> list[str]:
    """Planned runs without a result in the tables, by name."""
    return [f"{name_of(r)} {told(r)}" for v in variants for r in v.records if r["state"] != "finished"]


def remedy(scale: str, sweep: str) -> str:
    """What a person can do about gaps."""
    return (
        "What to do about these: run the same command again; where a run is diverged, damaged or left out, "
        f"remove its folder first; or delete its entry from runs/{scale}/{sweep}/plan.json, and its folder, "
        f"to withdraw it (where it has none there, its line in results/{scale}/{sweep}/records.jsonl)."
    )


def of_sweep(variants: list[Variant], rows: list[Row]) -> list[str]:
    """All notes, each once: two views may tell the same."""
    notes = [note for row in rows for note in [*of_row(row), *other_knobs(row)]]
    if not any(v.swap == BASELINE for v in variants):
        notes = ["There is no baseline among these runs, so no differences."]
    done = [record for v in variants for record in v.done.values()]
    notes += [note for key in NOTED for note in different(key, variants)]
    notes += groups(done)
    notes += [f"{name_of(record)}: {record['reason']}." for record in done if record["reason"]]
    if done and not any(beats_gzip(record) for record in done):
        notes.append("No run here predicts the text better than gzip: this tries the machinery and is no evidence.")
    return list(dict.fromkeys(notes))


def beats_gzip(record: dict) -> bool:
    """Whether a run has learned more of its text than a compressor from 1992."""
    return record["summary"]["final_bpb"] < record["summary"].get("anchors", {}).get("gzip", math.inf)


def of_row(row: Row) -> list[str]:
    """Seeds without a partner, a swap that changes nothing, a cost that is not matched, no baseline at these axes."""
    v, base = row.variant, row.baseline
    notes = []
    if base is None:
        return [f"{v.label}: no baseline was planned with the same settings."] if v.swap != BASELINE else []
    alone = [f"{x.name}/seed{s}" for x, y in ((v, base), (base, v)) for s in sorted(x.done) if s not in y.done]
    if alone:
        notes.append(f"Unpaired, so not in the difference of {v.label}: {', '.join(alone)}.")
    if len(row.final.values) and not row.final.values.any():
        notes.append(f"{v.label}: every seed equals the baseline's to the last digit. Does this swap change anything?")
    if v.about.get("matched") is False:
        notes.append(f"{v.label}: parameters are not matched. {v.about.get('reason') or ''}".strip())
    return notes


def other_knobs(row: Row) -> list[str]:
    """Knobs besides the seam and the axes that a swap sets otherwise than its baseline, in all its seeds."""
    if not (row.baseline and row.variant.done and row.baseline.done):
        return []
    found = beside_seam(*(next(iter(v.done.values())) for v in (row.variant, row.baseline)))
    words = ", ".join(f"{key} {short(base)} -> {short(mine)}" for key, (base, mine) in found.items())
    return [f"{row.variant.label}: differs from the baseline also in {words}."] if words else []


def different(key: str, variants: list[Variant]) -> list[str]:
    """Code, or something of the machine, that is not the same in all finished runs: who ran with what."""
    ran = defaultdict(list)  # value, whole -> names
    for v in variants:
        values = {seed: str(record["provenance"].get(key)) for seed, record in v.done.items()}
        if len(set(values.values())) == 1:
            ran[next(iter(values.values()))].append(v.name)
        else:
            for seed, value in values.items():
                ran[value].append(f"{v.name}/seed{seed}")
    if len(ran) < 2:
        return []
    cut = {value: short(value) for value in ran}
    cut = cut if len(set(cut.values())) == len(ran) else {value: value for value in ran}
    parts = "; ".join(f"{cut[value]}: {some(names)}" for value, names in ran.items())
    return [f"Not all runs have the same {CALLED.get(key, key)}. {parts}."]


def groups(done: list[dict]) -> list[str]:
    """Where variants that are not compared with each other were evaluated or trained in different ways."""
    ways = [dict(frozen(conditions(group[0]))) for group in compared(done)]
    keys = sorted({key for way in ways for key in differing(ways[0], way)})
    words = [f"{key} {' / '.join(dict.fromkeys(short(way.get(key, 'absent')) for way in ways))}" for key in keys]
    return [f"Not the same for all settings, so compare only within one: {', '.join(words)}."] if words else []


def apart(v: Variant) -> bool:
    """Whether every run of a variant was evaluated in another way than what it would be compared with."""
    return all(record["state"] == OUT and record["apart"] for record in v.records)
