"""How time and memory grow, as small multiples: a column for each axis, a row for each quantity."""

import math
from pathlib import Path
from statistics import median

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import STYLE, save
from analysis.plots import COLOURS, GREY, WIDTH, ticks_at
from analysis.stats import BETTER

QUANTITIES = ("ms a step", "peak memory, MB")


def draw(rows: list[dict], paths: list[Path]) -> None:
    """Writes the growth figure. Log axes, so that a straight line is a power; grey is 'in proportion'."""
    axes_names = list(dict.fromkeys(row["axis"] for row in rows))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH * 1.2, 4.6), layout="constrained")
        grid = figure.subplots(2, len(axes_names), sharex="col", sharey="row", squeeze=False)
        for column, name in zip(grid.T, axes_names, strict=True):
            mine = [row for row in rows if row["axis"] == name]
            x = [row["value"] for row in mine]
            times = [median(row["rounds_ms"]) for row in mine]
            spread = [(min(row["rounds_ms"]), max(row["rounds_ms"])) for row in mine]
            line(column[0], x, times, spread)
            line(column[1], x, [row["peak_mb"] for row in mine])
            column[0].set_title(name, loc="left", weight="bold")
        for ax, label in zip(grid[:, 0], QUANTITIES, strict=True):
            ax.set_ylabel(label)
            plain(ax.yaxis, ax.get_ylim(), (1, 2, 5))
        caption = (
            "The baseline block on one thread, one axis at a time from a common point. Log axes; dotted: in proportion."
        )
        figure.suptitle(caption, fontsize=9, x=0.01, ha="left", color="#333333")
        save(figure, paths)


def line(ax: Axes, x: list[float], y: list[float], spread: list[tuple[float, float]] | None = None) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    if spread:
        ax.plot(x, [y[0] * value / x[0] for value in x], color=GREY, lw=0.8, ls=":")
        ax.vlines(x, *zip(*spread, strict=True), color=COLOURS[BETTER], lw=1.2, alpha=0.6)
    ax.plot(x, y, color=COLOURS[BETTER], lw=1.4, marker="o", ms=4)
    ticks_at(ax.xaxis, x, "{:,.0f}".format)


def plain(axis, limits: tuple[float, float], steps: tuple[int, ...]) -> None:
    """Ticks at 1, 2 and 5 of each decade between the limits, as numbers and not as powers."""
    low, high = limits
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    ticks_at(axis, [tick for tick in ticks if low <= tick <= high], "{:,.10g}".format)
