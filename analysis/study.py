"""The records of a sweep put in order for a table: which runs stand together, and what is compared with what."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from analysis import runs, stats
from analysis.stats import Difference, Spread
from config import UserError

BASELINE = "baseline"
RATE = "train.lr"  # the swept key that is tuned for each variant, not compared


@dataclass(frozen=True)
class Variant:
    """A swap, with the values of the other swept keys, and all its planned runs."""

    name: str
    swap: str
    axes: dict
    label: str
    about: dict
    records: list[dict]
    done: dict[int, dict]  # seed -> record of a finished run

    @property
    def complete(self) -> bool:
        return len(self.done) == len(self.records)

    @property
    def final(self) -> Spread:
        return stats.spread([record["summary"]["final_bpb"] for record in self.done.values()])

    @property
    def best(self) -> Spread:
        return stats.spread([record["summary"]["best_bpb"] for record in self.done.values()])

    def at(self, step: int) -> Spread:
        return stats.spread([bpb(record, step) for record in self.done.values()])

    def summaries(self, key: str) -> list[float]:
        """A number of summary.json, of each finished seed that has it."""
        return [record["summary"][key] for record in self.done.values() if record["summary"].get(key) is not None]


@dataclass(frozen=True)
class Row:
    """A variant beside its baseline. Without one, and for the baseline itself, there are no differences."""

    variant: Variant
    baseline: Variant | None = None
    final: Difference | None = None
    at: dict[int, Difference] = field(default_factory=dict)  # by step
    p: float = np.nan  # Holm-adjusted, of the final difference
    verdict: str = ""
    resolvable: float = np.nan  # bits per byte


@dataclass(frozen=True)
class View:
    """One table: rows that are compared as one family."""

    title: str
    rows: list[Row]

    @property
    def swaps(self) -> list[Row]:
        return [row for row in self.rows if row.final is not None]


@dataclass(frozen=True)
class Study:
    scale: str
    sweep: str
    variants: list[Variant]
    steps: list[int]  # checkpoints that all finished runs share, without step 0
    views: list[View]  # one; with a grid of rates two: at the shared rate, and each at its own best
    grid: dict[tuple, dict[float, Variant]]  # with a grid of rates: (swap, other axes) -> rate -> variant
    gaps: list[str]  # planned runs without a result, by name
    notes: list[str]  # what a reader of the tables must be told


def study(records: list[dict]) -> Study:
    """Raises UserError where there are no records."""
    if not records:
        raise UserError("no records: there is nothing to put into a table")
    variants = group(runs.guard(records))
    evaluated = [{step for step, _ in r["evals"] if step > 0} for v in variants for r in v.done.values()]
    steps = sorted(set.intersection(*evaluated)) if evaluated else []
    grid = rates(variants)
    views = [View(title, compare(pairs, steps)) for title, pairs in (tuned(grid) if grid else plain(variants))]
    gaps = [f"{v.name}/seed{r['seed']} {told(r)}" for v in variants for r in v.records if r["state"] != "finished"]
    notes = [note for view in views for row in view.rows for note in row_notes(row)] + grid_notes(grid)
    if not any(v.swap == BASELINE for v in variants):
        notes = ["There is no baseline among these runs, so no differences."]
    notes += [note for view in views for row in view.rows for note in code_notes(row)]
    notes = list(dict.fromkeys(notes))  # two views may tell the same
    return Study(records[0]["scale"], records[0]["sweep"], variants, steps, views, grid, gaps, notes)


def group(records: list[dict]) -> list[Variant]:
    """Variants in the order of their first records, each with a label of its own."""
    by_name = defaultdict(list)
    for record in records:
        by_name[record["variant"]].append(record)
    labels = {name: label(members[0]) for name, members in by_name.items()}
    shared = Counter(labels.values())
    found = []
    for name, members in by_name.items():
        first = members[0]
        text = labels[name] if shared[labels[name]] == 1 else f"{labels[name]} [{name}]"
        done = {r["seed"]: r for r in members if r["state"] == "finished"}
        found.append(Variant(name, first["swap"], first["axes"], text, first.get("about", {}), members, done))
    return found


def label(record: dict) -> str:
    """The swap's own words, and the values of the other swept keys; one line, whatever a user typed."""
    words = [str(record.get("about", {}).get("label") or record["swap"])]
    words += [f"{key.rpartition('.')[2]}={value}" for key, value in record["axes"].items()]
    return " ".join("".join(c if c.isprintable() else " " for c in ", ".join(words)).split())


def bpb(record: dict, step: int) -> float:
    return dict(record["evals"])[step]


def told(record: dict) -> str:
    """A run's state and why, in words."""
    return " ".join(f"{record['state']}: {record['reason']}".rstrip(": ").split())


def plain(variants: list[Variant]) -> list[tuple]:
    """One table: each swap beside the baseline with the same values of the other axes."""
    baselines = {repr(sorted(v.axes.items())): v for v in variants if v.swap == BASELINE}
    pairs = [(v, None if v.swap == BASELINE else baselines.get(repr(sorted(v.axes.items())))) for v in variants]
    return [("", pairs)]


def rates(variants: list[Variant]) -> dict[tuple, dict[float, Variant]]:
    """Where learning rates were swept: the variants of each swap (and of other axes) by their rate."""
    if len({v.axes[RATE] for v in variants if RATE in v.axes}) < 2:
        return {}
    grid = defaultdict(dict)
    for v in variants:
        rest = repr(sorted((key, value) for key, value in v.axes.items() if key != RATE))
        grid[v.swap, rest if RATE in v.axes else f"{rest} untuned"][v.axes.get(RATE, np.nan)] = v
    return dict(grid)


def tuned(grid: dict[tuple, dict[float, Variant]]) -> list[tuple]:
    """Two tables: all at the baseline's best rate, and each variant at its own best rate."""
    shared, own = [], []
    for (swap, rest), by_rate in grid.items():
        base = grid.get((BASELINE, rest))
        anchor = base[best_rate(base)] if base else None
        partner = None if swap == BASELINE else anchor
        own.append((by_rate[best_rate(by_rate)], partner))
        rate = anchor.axes.get(RATE) if anchor else None
        if rate in by_rate:
            shared.append((by_rate[rate], partner))
    tables = [("At the shared learning rate (the baseline's best, chosen on dev)", shared)] if shared else []
    return [*tables, ("Each at its own best learning rate (chosen on dev)", own)]


def best_rate(by_rate: dict[float, Variant]) -> float:
    """The rate of the lowest mean final bpb over seeds, among the rates at which every seed finished, if any."""
    whole = {rate: v for rate, v in by_rate.items() if v.complete} or by_rate
    return min(whole, key=lambda rate: (-len(whole[rate].done), np.nan_to_num(whole[rate].final.mean, nan=np.inf)))


def compare(pairs: list[tuple[Variant, Variant | None]], steps: list[int]) -> list[Row]:
    """The rows of one table; Holm's correction runs over all its swaps, finished or not."""
    rows = [contrast(variant, baseline, steps) for variant, baseline in pairs]
    swaps = [row for row in rows if row.final is not None]
    adjusted = stats.holm([row.final.p if row.verdict == "" else np.nan for row in swaps])
    known = [row.final for row in swaps if len(row.final.values) > 1]
    sds, ns = [d.sd for d in known], [len(d.values) for d in known]
    p = {row.variant.name: value for row, value in zip(swaps, adjusted, strict=True)}
    return [judged(row, p[row.variant.name], sds, ns, len(swaps)) if row.final is not None else row for row in rows]


def contrast(variant: Variant, baseline: Variant | None, steps: list[int]) -> Row:
    """A row with its differences; its verdict is set here only where no test is allowed."""
    if baseline is None:
        return Row(variant)
    seeds = [seed for seed in variant.done if seed in baseline.done]
    mine, base = ([v.done[seed] for seed in seeds] for v in (variant, baseline))
    final = stats.paired(*([r["summary"]["final_bpb"] for r in side] for side in (mine, base)))
    at = {step: stats.paired(*([bpb(r, step) for r in side] for side in (mine, base))) for step in steps}
    word = stats.INCOMPLETE if not (variant.complete and baseline.complete) else ""
    if not word and len(seeds) < stats.MIN_SEEDS:
        word = stats.TOO_FEW
    return Row(variant, baseline, final, at, verdict=word)


def judged(row: Row, p: float, sds: list[float], ns: list[int], family: int) -> Row:
    least = stats.resolvable(sds, ns, len(row.final.values), family)
    if row.verdict:
        return replace(row, resolvable=least)
    return replace(row, resolvable=least, p=float(p), verdict=stats.verdict(row.final, p))


def row_notes(row: Row) -> list[str]:
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


def grid_notes(grid: dict[tuple, dict[float, Variant]]) -> list[str]:
    """Variants whose best rate is the lowest or the highest that was tried: a better one may lie beyond."""
    notes = []
    for by_rate in grid.values():
        ended = [rate for rate, v in by_rate.items() if all(r["state"] in ("finished", "diverged") for r in v.records)]
        rate = best_rate(by_rate)
        if len(by_rate) > 1 and rate in ended and rate in (min(ended), max(ended)):
            notes.append(f"{by_rate[rate].label}: the best rate is on the grid's edge; a better one may lie beyond.")
    return notes


def code_notes(row: Row) -> list[str]:
    """Seeds that ran different code are averaged, and compared with the baseline, only with a word about it."""
    mine, base = codes(row.variant), codes(row.baseline) if row.baseline else {}
    notes = []
    if len(mine) > 1:
        parts = "; ".join(f"{', '.join(seeds)}: {code}" for code, seeds in mine.items())
        notes.append(f"{row.variant.label}: its seeds did not run the same code ({parts}).")
    if len(mine) == len(base) == 1 and mine.keys() != base.keys():
        notes.append(f"{row.variant.label}: ran code {next(iter(mine))}, its baseline code {next(iter(base))}.")
    return notes


def codes(v: Variant) -> dict[str, list[str]]:
    """Code hash -> the finished seeds that ran it."""
    found = defaultdict(list)
    for seed, record in v.done.items():
        found[str(record["provenance"].get("code_sha256"))[:8]].append(f"seed{seed}")
    return found
