"""The records of a sweep put in order for a table: which runs stand together, and what is compared with what."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from analysis import grid, notes, stats
from analysis.guard import guard
from analysis.runs import BASELINE
from analysis.stats import Difference, Spread
from analysis.words import printable
from config import UserError


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

    @property
    def family(self) -> list[Row]:
        """The comparisons that Holm's correction counts: finished or not, but no swap that can never be compared."""
        return [row for row in self.swaps if row.verdict != stats.APART]


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

    @property
    def final_apart(self) -> bool:
        """Whether some run ends at another step than the last common checkpoint."""
        return {r["evals"][-1][0] for v in self.variants for r in v.done.values()} != set(self.steps[-1:])


def study(records: list[dict]) -> Study:
    """Raises UserError where there are no records."""
    if not records:
        raise UserError("no records: there is nothing to put into a table")
    variants = group(guard(records))
    evaluated = [{step for step, _ in r["evals"] if step > 0} for v in variants for r in v.done.values()]
    steps = sorted(set.intersection(*evaluated)) if evaluated else []
    by_rate = grid.rates(variants)
    tables = grid.tuned(by_rate) if by_rate else at_equal_axes(variants)
    views = [View(title, compare(pairs, steps)) for title, pairs in tables]
    told = notes.of_sweep(variants, [row for view in views for row in view.rows]) + grid.edges(by_rate)
    first = records[0]
    return Study(first["scale"], first["sweep"], variants, steps, views, by_rate, notes.gaps(variants), told)


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
    return printable(", ".join(words))


def bpb(record: dict, step: int) -> float:
    return dict(record["evals"])[step]


def at_equal_axes(variants: list[Variant]) -> list[tuple]:
    """One table: each swap beside the baseline with the same values of the other axes."""
    baselines = {repr(sorted(v.axes.items())): v for v in variants if v.swap == BASELINE}
    pairs = [(v, None if v.swap == BASELINE else baselines.get(repr(sorted(v.axes.items())))) for v in variants]
    return [("", pairs)]


def compare(pairs: list[tuple[Variant, Variant | None]], steps: list[int]) -> list[Row]:
    """The rows of one table; Holm's correction runs over its family."""
    rows = [contrast(variant, baseline, steps) for variant, baseline in pairs]
    family = View("", rows).family
    adjusted = stats.holm([row.final.p if row.verdict == "" else np.nan for row in family])
    known = [row.final for row in family if len(row.final.values) > 1]
    sds, ns = [d.sd for d in known], [len(d.values) for d in known]
    p = {row.variant.name: value for row, value in zip(family, adjusted, strict=True)}
    return [judged(row, p[row.variant.name], sds, ns, len(family)) if row.variant.name in p else row for row in rows]


def contrast(variant: Variant, baseline: Variant | None, steps: list[int]) -> Row:
    """A row with its differences; its verdict is set here only where no test is allowed."""
    if baseline is None:
        return Row(variant)
    seeds = [seed for seed in variant.done if seed in baseline.done]
    mine, base = ([v.done[seed] for seed in seeds] for v in (variant, baseline))
    final = stats.paired(*([r["summary"]["final_bpb"] for r in side] for side in (mine, base)))
    at = {step: stats.paired(*([bpb(r, step) for r in side] for side in (mine, base))) for step in steps}
    word = stats.INCOMPLETE if not (variant.complete and baseline.complete) else ""
    word = stats.APART if notes.apart(variant) else word
    if not word and len(seeds) < stats.MIN_SEEDS:
        word = stats.TOO_FEW
    return Row(variant, baseline, final, at, verdict=word)


def judged(row: Row, p: float, sds: list[float], ns: list[int], family: int) -> Row:
    least = stats.resolvable(sds, ns, len(row.final.values), family)
    if row.verdict:
        return replace(row, resolvable=least)
    return replace(row, resolvable=least, p=float(p), verdict=stats.verdict(row.final, p))
