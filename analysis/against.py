"""Figures of a whole sweep against one number: another swept value, or the cache that generation needs."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.plots import GREY, WIDTH, colour, head, ticks_at, wrapped
from analysis.runs import BASELINE, RATE
from analysis.study import Row, Study
from config import UserError

MARKS = "osD^vPX*"
LINES = ["#0072B2", "#D55E00", "#009E73", "#AA4499", "#E69F00", "#56B4E9", "#777777", "#000000"]


def axis(study: Study) -> Figure:
    """Difference to the baseline against the one other value that was swept, a line a swap.

    Raises UserError where no such value, or more than one, was swept.
    """
    rows = [row for row in study.views[0].swaps if len(row.final.values)]
    swept = {key for v in study.variants for key in v.axes if key != RATE}
    values = sorted({row.variant.axes.get(key) for row in rows for key in swept} if len(swept) == 1 else [], key=repr)
    if len(values) < 2 or not all(isinstance(value, int | float) for value in values):
        raise UserError("no single number was swept besides the swap: nothing to draw against")
    key, swaps = swept.pop(), list(dict.fromkeys(row.variant.swap for row in rows))
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    ax = figure.subplots()
    ax.axhline(0, color=GREY, lw=1)
    for n, swap in enumerate(swaps):
        line(ax, [row for row in rows if row.variant.swap == swap], key, n - (len(swaps) - 1) / 2, n)
    ax.set_xscale("log", base=2)
    ticks_at(ax.xaxis, sorted(values), "{:g}".format)
    ax.set_xlabel(key)
    ax.set_ylabel("difference in final bits per byte")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    head(figure, study, "Swap minus baseline with the same value: mean and 95% t interval. Below zero: better.", 105)
    return figure


def line(ax: Axes, rows: list[Row], key: str, aside: float, n: int) -> None:
    """One swap's points and intervals, a little aside, so that those of several swaps do not hide each other."""
    rows = sorted(rows, key=lambda row: row.variant.axes[key])
    x = [row.variant.axes[key] * 2 ** (0.05 * aside) for row in rows]
    means = np.array([row.final.mean for row in rows])
    ends = np.abs(np.array([(row.final.low, row.final.high) for row in rows]).T - means)
    look = {"color": LINES[n % len(LINES)], "marker": MARKS[n % len(MARKS)]}
    label = rows[0].variant.about.get("label") or rows[0].variant.swap
    ax.errorbar(x, means, np.nan_to_num(ends), lw=1.3, ms=5, capsize=2, elinewidth=1, label=wrapped(label, 40), **look)


def cache(study: Study) -> Figure:
    """Final bits per byte against the cache of a symbol, a point a variant.

    Raises UserError where all variants have the same cache, or other values were swept, too.
    """
    rows = [row for row in study.views[0].rows if row.variant.done]
    kept = {row.variant.name: row.variant.summaries("kv_bytes_per_token") for row in rows}
    rows = [row for row in rows if kept[row.variant.name]]
    if len({kept[row.variant.name][0] for row in rows}) < 2 or any(row.variant.axes for row in rows):
        raise UserError("one size of the cache: nothing to draw against")
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    ax = figure.subplots()
    for row in rows:
        size, final, look = kept[row.variant.name][0], row.variant.final, colour(row)
        look = GREY if row.variant.swap == BASELINE else look
        ax.errorbar(size, final.mean, np.nan_to_num(final.sd), fmt="o", ms=6, capsize=3, color=look)
        ax.annotate(wrapped(row.variant.label, 26), (size, final.mean), (7, 5), textcoords="offset points", color=look)
    ax.set_xscale("log", base=2)
    ticks_at(ax.xaxis, sorted({kept[row.variant.name][0] for row in rows}), "{:,.0f}".format)
    ax.margins(x=0.22, y=0.15)
    ax.set_xlabel("bytes of key/value cache a symbol, 16 bit, all layers")
    ax.set_ylabel("final dev bits per byte")
    head(figure, study, "Mean and standard deviation over the seeds. Orange: worse, blue: better, grey: baseline.", 105)
    return figure
