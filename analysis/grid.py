"""A grid of learning rates: each swap at the shared rate, and at its own best."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from analysis.guard import peers
from analysis.runs import BASELINE, RATE

if TYPE_CHECKING:
    from analysis.study import Variant

ByRate = dict[float, "Variant"]


def rates(variants: list[Variant]) -> dict[tuple, ByRate]:
    """Where learning rates were swept: the variants of each swap (and of other axes) by their rate."""
    if len({v.axes[RATE] for v in variants if RATE in v.axes}) < 2:
        return {}
    grid = defaultdict(dict)
    for v in variants:
        rest = peers(v.axes)
        grid[v.swap, rest if RATE in v.axes else f"{rest} untuned"][v.axes.get(RATE, np.nan)] = v
    return dict(grid)


def tuned(grid: dict[tuple, ByRate]) -> list[tuple]:
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


def best_rate(by_rate: ByRate) -> float:
    """The rate of the lowest mean final bpb over seeds, among the rates at which every seed finished, if any."""
    whole = {rate: v for rate, v in by_rate.items() if v.complete} or by_rate
    return min(whole, key=lambda rate: (-len(whole[rate].done), np.nan_to_num(whole[rate].final.mean, nan=np.inf)))


def edges(grid: dict[tuple, ByRate]) -> list[str]:
    """Variants whose best rate is the lowest or the highest that was tried: a better one may lie beyond."""
    notes = []
    for by_rate in grid.values():
        ended = [rate for rate, v in by_rate.items() if all(r["state"] in ("finished", "diverged") for r in v.records)]
        rate = best_rate(by_rate)
        if len(by_rate) > 1 and rate in ended and rate in (min(ended), max(ended)):
            notes.append(f"{by_rate[rate].label}: the best rate is on the grid's edge; a better one may lie beyond.")
    return notes
