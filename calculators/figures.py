"""The calculators' figures, in the house style of analysis/figures.py."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression

from analysis.figures import STYLE, save
from analysis.plots import GREY, WIDTH, ticks_at
from calculators.laws import TRAIN, Law
from config import UserError

# Okabe and Ito's colours: told apart by most colour-blind eyes; the labels at the lines' ends say the same.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#B8A900")
GIB = 1024**3


def cache(lines: dict[str, list[float]], contexts: list[int], gpu: float, bits: int, path: Path) -> None:
    """Bytes of one sequence against its context, a line a model, the GPU's memory across.

    Raises UserError for more models than there are colours.
    """
    if len(lines) > len(PALETTE):
        raise UserError(f"--figure: {len(lines)} models, at most {len(PALETTE)} can be told apart in one figure")
    with matplotlib.rc_context(STYLE):
        figure, ax = blank(f"Key/value cache of one sequence, {bits} bit. Log axes; dashed: one GPU's memory.", 4.6)
        ends = []
        for (label, values), paint in zip(lines.items(), PALETTE, strict=False):
            ax.plot(contexts, np.array(values) / GIB, color=paint, lw=1.6)
            ends.append((values[-1] / GIB, label, paint))
        ax.axhline(gpu, color=GREY, lw=1, ls="--")
        ax.annotate(f"{gpu:g} GiB", (contexts[0], gpu), (2, 3), textcoords="offset points", color=GREY)
        ax.set_yscale("log")
        log_ticks(ax, contexts[::2], tokens)
        decades = 10.0 ** np.arange(-4, 6)
        low, high = ax.get_ylim()
        ticks_at(ax.yaxis, [tick for tick in decades if low <= tick <= high], "{:,g}".format)
        label_ends(ax, ends)
        ax.set_xlabel("context, tokens")
        ax.set_ylabel("cache, GiB")
        write(figure, path)


def loss_against_size(laws: list[Law], params: float, tokens: float, path: Path) -> None:
    """Loss of models of many sizes for the compute of one, under each fit; its own place and the minimum marked."""
    spent = TRAIN * params * tokens
    sizes, ends = np.geomspace(2e9, 256e9, 200), []
    lowest = min(laws, key=lambda law: law.loss(*law.optimal(spent)))  # its label goes below, off the other lines
    with matplotlib.rc_context(STYLE):
        words = f"Loss against size, each model trained with C = {spent:.1e} FLOPs: smaller ones on more tokens. "
        figure, ax = blank(f"{words}Circle: {params / 1e9:.0f}B on {tokens / 1e12:.0f}T tokens; bar: the optimum.", 4.0)
        for law, paint in zip(laws, PALETTE, strict=False):
            ax.plot(sizes, law.loss(sizes, spent / (TRAIN * sizes)), color=paint, lw=1.6)
            best, data = law.optimal(spent)
            low = law.loss(best, data)
            ax.plot(best, low, "|", color=paint, ms=14, mew=2)
            ax.plot(params, law.loss(params, tokens), "o", color=paint, ms=5)
            ax.annotate(
                f"{best / 1e9:.0f}B",
                (best, low),
                (0, -16 if law is lowest else 9),
                textcoords="offset points",
                color=paint,
                ha="center",
            )
            ends.append((law.loss(sizes[-1], spent / (TRAIN * sizes[-1])), law.label, paint))
        ticks = [2.0**n * 1e9 for n in range(1, 9)]
        log_ticks(ax, ticks, lambda tick: f"{tick / 1e9:.0f}B")
        ax.margins(y=0.1)
        label_ends(ax, ends)
        ax.set_xlabel("parameters")
        ax.set_ylabel("predicted loss, nats per token")
        write(figure, path)


def blank(caption: str, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.suptitle("\n".join(textwrap.wrap(caption, 105)), fontsize=9, x=0.01, ha="left", color="#333333")
    return figure, figure.subplots()


def log_ticks(ax: Axes, ticks: list[float], show: Callable[[float], str]) -> None:
    ax.set_xscale("log")
    ticks_at(ax.xaxis, ticks, show)
    ax.set_xlim(ticks[0], ticks[-1])


def tokens(count: float) -> str:
    return f"{count / 1024**2:.0f}M" if count >= 1024**2 else f"{count / 1024:.0f}k"


def label_ends(ax: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Names beside the lines' right ends, moved apart where they would overlap. `ends`: (y, name, colour)."""
    height = 0.052  # of a line of letters, in parts of the axes
    ax.autoscale_view()
    to_axes = ax.transData + ax.transAxes.inverted()
    ends = sorted(ends)
    steps = height * np.arange(len(ends))
    wanted = [to_axes.transform((ax.get_xlim()[1], y))[1] for y, *_ in ends]
    places = isotonic_regression(wanted - steps).x + steps  # the nearest places that are a line apart
    for place, (_, name, paint) in zip(places, ends, strict=True):
        ax.annotate(name, (1, place), (5, 0), "axes fraction", "offset points", color=paint, va="center")


def write(figure: Figure, path: Path) -> None:
    save(figure, [path.with_name(f"{path.name}.{kind}") for kind in ("svg", "png")])
