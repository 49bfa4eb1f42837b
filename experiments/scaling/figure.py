"""Runs and fitted law side by side: loss against symbols, a line a size, and against parameters, a line a length."""

import textwrap
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import STYLE
from analysis.plots import WIDTH, ticks_at
from calculators import figures
from calculators.chinchilla import size
from experiments.scaling.ladders import Ladder

CAPTION = (
    "Final bits per byte of each run (dots) and the law fitted to all of a text's runs (lines). "
    "A miss of the line is a miss of the law."
)


def draw(ladders: list[Ladder], path: Path) -> None:
    """Writes PATH.svg and PATH.png."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.4 * len(ladders) + 0.5), layout="constrained")
        for line, ladder in zip(figure.subplots(len(ladders), 2, sharey="row", squeeze=False), ladders, strict=True):
            p, law = ladder.points, ladder.found.law
            panel(line[0], (p.D, p.N, p.loss), lambda D, N, law=law: law.loss(N, D))
            panel(line[1], (p.N, p.D, p.loss), law.loss)
            line[0].set_title(f"{ladder.text}: a line a size", loc="left", weight="bold")
            line[1].set_title(f"{ladder.text}: a line a length", loc="left", weight="bold")
            line[0].set_xlabel("symbols trained on")
            line[1].set_xlabel("parameters without tables")
            line[0].set_ylabel("bits per byte")
            line[1].tick_params(labelleft=True)
        figure.suptitle("\n".join(textwrap.wrap(CAPTION, 105)), fontsize=9, x=0.01, ha="left", color="#333333")
        figures.write(figure, path)


def panel(ax: Axes, columns: tuple[np.ndarray, np.ndarray, np.ndarray], law) -> None:
    """Loss against the first column, a colour and a line for each value of the second."""
    x, other, loss = columns
    grid, ends, values = np.geomspace(x.min(), x.max(), 100), [], sorted(set(other))
    for n, value in enumerate(values):
        shade = matplotlib.colormaps["viridis"](0.85 * n / max(1, len(values) - 1))
        mine = other == value
        ax.plot(x[mine], loss[mine], "o", color=shade, ms=4, alpha=0.8)
        ax.plot(grid, law(grid, value), color=shade, lw=1.4)
        ends.append((float(law(grid[-1], value)), size(value), shade))
    ax.set_xscale("log")
    ax.set_xlim(x.min() / 1.15, x.max() * 1.15)
    ticks_at(ax.xaxis, sorted(set(x)), size)
    figures.label_ends(ax, ends)
