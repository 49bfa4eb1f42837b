"""A study's figures of single swaps: learning curves, forest plot, difference by step.

Colours tell the verdict and survive colour blindness; words beside the marks say the same.
"""

import math
import textwrap
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from analysis.stats import BETTER, WORSE
from analysis.study import Row, Study, View
from analysis.words import interval, signed
from config import UserError

WIDTH = 8.0  # inches, shown at about 800 pixels
MOST = 18  # swaps in one figure; more would not be legible
COLOURS = {WORSE: "#D55E00", BETTER: "#0072B2"}
OPEN, GREY = "#AA4499", "#777777"  # no verdict either way; the baseline


def most_telling(rows: list[Row]) -> tuple[list[Row], str]:
    """At most MOST swaps, those that differ most, in the table's order; and a word about the others."""
    if len(rows) <= MOST:
        return rows, ""
    size = [-abs(row.final.mean) if row.final is not None and len(row.final.values) else 0.0 for row in rows]
    kept = sorted(np.argsort(size, kind="stable")[:MOST])
    return [rows[i] for i in kept], f" The {MOST} of {len(rows)} swaps that differ most; the table has all."


def colour(row: Row) -> str:
    return COLOURS.get(row.verdict, OPEN)


def said(row: Row) -> str:
    """The verdict, and how many seeds it stands on where some are not there."""
    v = row.variant
    return "\n".join([row.verdict] + [f"{len(v.done)} of {len(v.records)} seeds finished"] * (not v.complete)).strip()


def wrapped(label: str, width: int, lines: int = 2) -> str:
    return "\n".join(textwrap.wrap(label, width, max_lines=lines, placeholder=" …"))


def panels(study: Study, rows: list[Row], paint: Callable[[Axes, Row], None], caption: str, y_label: str) -> Figure:
    """One small panel a swap, all on the same axes, ticks at the checkpoints."""
    columns = min(len(rows), 2 if len(rows) <= 4 else 3)
    lines = math.ceil(len(rows) / columns)
    figure = Figure(
        figsize=(WIDTH if columns > 1 else 5.5, 2.35 * lines + 0.6 if columns > 1 else 3.9), layout="constrained"
    )
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for ax, row in zip(axes.flat, rows, strict=False):
        paint(ax, row)
        title = wrapped(row.variant.label, 40 if columns < 3 else 26, lines=3)
        ax.set_title(title, loc="left", color=colour(row), weight="bold")
        ax.text(0.99, 0.97, said(row), transform=ax.transAxes, ha="right", va="top", color=colour(row), fontsize=8)
        few = len(study.steps) <= 5
        ax.xaxis.set_major_locator(FixedLocator(study.steps) if few else MaxNLocator(4, integer=True))
        ax.tick_params(labelbottom=True)
    for ax in axes.flat[len(rows) :]:
        ax.set_axis_off()
    figure.supxlabel("step", fontsize=9)
    figure.supylabel(y_label, fontsize=9)
    head(figure, study, caption, 105 if columns > 1 else 70)
    return figure


def head(figure: Figure, study: Study, caption: str, width: int) -> None:
    """What is shown, and of which sweep and text, in small letters over the whole figure."""
    texts = sorted({record["text"] for variant in study.variants for record in variant.records if record.get("text")})
    caption = f"{study.scale}/{study.sweep} on {', '.join(texts)}. {caption}"
    figure.suptitle("\n".join(textwrap.wrap(caption, width)), fontsize=9, x=0.01, ha="left", color="#333333")


def curves(study: Study) -> Figure:
    """All seeds of each swap against the baseline's: dev bits per byte at the checkpoints."""
    rows, rest = most_telling(study.views[0].swaps or study.views[0].rows)
    bases = list({row.baseline.name: row.baseline.label for row in rows if row.baseline}.values())
    done = [r for row in rows for v in (row.variant, row.baseline) if v for r in v.done.values()]
    if not done or not study.steps:
        raise UserError("no finished run: no learning curves to draw")
    points = [bpb for r in done for step, bpb in r["evals"] if step >= study.steps[0]]
    low, span = min(points), max(np.ptp(points), 0.01)

    def paint(ax: Axes, row: Row) -> None:
        ends = []
        for variant, paint_in in ((row.baseline, GREY), (row.variant, colour(row))):
            for finished, dashes in ((True, "-"), (False, ":")) if variant else ():
                members = [r for r in variant.records if (r["seed"] in variant.done) == finished]
                x, y = one_line([[p for p in r.get("evals", []) if p[0] > 0] for r in members])
                ax.plot(x, y, color=paint_in, lw=1.2, ls=dashes, marker="o", ms=2.5, alpha=0.85)
            if variant and variant.done:
                ends.append((variant.final.mean, paint_in))
        label_ends(ax, ends, span * 0.09)

    caption = "One line a seed (dotted: not finished), final means at the right."
    caption += f" Grey: {bases[0] if len(bases) == 1 else 'the baseline with the same settings'}." if bases else ""
    figure = panels(study, rows, paint, caption + rest, "dev bits per byte")
    figure.axes[0].set_ylim(low - span * 0.08, low + span * 1.05)
    return figure


def one_line(lines: list[list]) -> np.ndarray:
    """Many lines of (x, y) points as the x and y of a single one with gaps: far faster to draw."""
    gap = (np.nan, np.nan)
    return np.array([point for line in lines for point in [*line, gap]], float).reshape(-1, 2).T


def label_ends(ax: Axes, ends: list[tuple[float, str]], apart: float) -> None:
    """The final means beside the lines' ends, moved apart where they would overlap."""
    ends = sorted(ends)
    places = [y for y, _ in ends]
    if len(places) == 2 and places[1] - places[0] < apart:
        middle = sum(places) / 2
        places = [middle - apart / 2, middle + apart / 2]
    for place, (y, paint_in) in zip(places, ends, strict=True):
        ax.annotate(
            f"{y:.3f}", (1, place), (4, 0), ("axes fraction", "data"), "offset points", color=paint_in, va="center"
        )


def ticks_at(axis: Axis, places: list[float], show: Callable[[float], str]) -> None:
    """Ticks at these places alone, in words of `show`: what a log axis does not do by itself. Set its scale before."""
    axis.set_major_locator(FixedLocator(places))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))


def forest(study: Study) -> Figure:
    """The final differences with their intervals, seeds as small dots; one part a view."""
    views = [(view, *most_telling([row for row in view.swaps if len(row.final.values)])) for view in study.views]
    views = [part for part in views if part[1]]
    if not views:
        raise UserError("no swap and baseline with a finished seed in common: no differences to draw")
    heights = [0.42 * len(rows) + 0.9 for _, rows, _ in views]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.3), layout="constrained")
    axes = figure.subplots(len(views), 1, squeeze=False, height_ratios=heights)
    for ax, (view, rows, _) in zip(axes.flat, views, strict=True):
        forest_part(ax, view, rows)
    seeds = sorted({len(row.final.values) for _, rows, _ in views for row in rows})
    count = f"{seeds[0]} seed" + "s" * (seeds[0] > 1) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    caption = f"Swap minus baseline: mean and 95% t interval, paired by seed, {count} (small ticks)." + views[0][2]
    without = [row.variant.label for view in study.views for row in view.swaps if not len(row.final.values)]
    caption += f" No finished pair of seeds: {'; '.join(without)}." if without else ""
    head(figure, study, caption, 105)
    return figure


def forest_part(ax: Axes, view: View, rows: list[Row]) -> None:
    rows = sorted(rows, key=lambda row: -row.final.mean)
    for y, row in enumerate(rows):
        d = row.final
        ax.plot(d.values, np.full(len(d.values), y + 0.22), "|", color=colour(row), ms=5, alpha=0.7)
        ax.plot([d.low, d.high], [y, y], color=colour(row), lw=2.2, solid_capstyle="round")
        ax.plot(d.mean, y, "o", color=colour(row), ms=6)
    ax.axvline(0, color="#333333", lw=1)
    values = np.concatenate([[0.0], *(row.final.values for row in rows)])
    ends = np.array([(row.final.low, row.final.high) for row in rows])
    margin = max(np.ptp(values), 0.01)
    ax.set_xlim(
        max(np.nanmin([*ends[:, 0], values.min()]), values.min() - margin) - 0.06 * margin,
        min(np.nanmax([*ends[:, 1], values.max()]), values.max() + margin) + 0.06 * margin,
    )
    ax.set_ylim(-0.6, len(rows) - 0.4)
    ax.set_yticks(range(len(rows)), [wrapped(row.variant.label, 30) for row in rows])
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    right = ax.secondary_yaxis("right")
    right.set_yticks(range(len(rows)), [f"{interval(row.final)}\n{row.verdict}" for row in rows])
    right.tick_params(axis="y", length=0, labelsize=8)
    right.spines["right"].set_visible(False)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("difference to the baseline in final bits per byte: left is better")
    ax.set_title(view.title, loc="left", fontsize=9, weight="bold")


def steps(study: Study) -> Figure:
    """The difference to the baseline at each checkpoint: mean, interval, single seeds."""
    rows, rest = most_telling([row for row in study.views[0].swaps if len(row.final.values)])
    if not rows or not study.steps:
        raise UserError("no swap and baseline with a finished seed in common: no differences to draw")
    values = np.concatenate([row.at[step].values for row in rows for step in study.steps])
    low, high = min(values.min(), 0), max(values.max(), 0)

    def paint(ax: Axes, row: Row) -> None:
        found = [row.at[step] for step in study.steps]
        ax.axhline(0, color=GREY, lw=1)
        band = [[d.low for d in found], [d.high for d in found]]
        ax.fill_between(study.steps, *band, color=colour(row), alpha=0.18, lw=0)
        seeds = [list(zip(study.steps, values, strict=True)) for values in np.transpose([d.values for d in found])]
        ax.plot(*one_line(seeds), color=colour(row), lw=0.7, alpha=0.6)
        ax.plot(study.steps, [d.mean for d in found], color=colour(row), lw=2, marker="o", ms=3.5)
        end = found[-1].mean
        ax.annotate(
            signed(end), (1, end), (4, 0), ("axes fraction", "data"), "offset points", color=colour(row), va="center"
        )

    caption = (
        "Swap minus baseline at each checkpoint: mean, 95% t interval, and each seed. Below the grey line: better."
    )
    figure = panels(study, rows, paint, caption + rest, "difference in dev bits per byte")
    room = max(high - low, 0.01) * 0.18
    figure.axes[0].set_ylim(low - room, high + room)
    return figure
