"""Numbers as a person reads them: the same words in tables, figures and reports, and in a run's own line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # a single run prints its line without loading the statistics
    from analysis.stats import Difference, Spread

MINUS, DASH, TIMES, NONE = "\u2212", "\u2013", "\u00d7", "\u2014"
HARD = "\u00a0"  # a space at which a narrow page does not break the line


def printable(text: str) -> str:
    """One line of it, whatever a person or a file from elsewhere put there: nothing that a terminal would obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def signed(x: float) -> str:
    """A difference in bits per byte, never "-0.000"."""
    return f"{round(float(x), 3) + 0.0:+.3f}".replace("-", MINUS)


def plain_number(x: float) -> str:
    return NONE if np.isnan(x) else f"{x:.3f}"


def show_spread(s: Spread) -> str:
    """Mean and standard deviation, where there is more than one seed."""
    if not s.n:
        return NONE
    return f"{s.mean:.3f}" + (f" ±{HARD}{s.sd:.3f}" if s.n > 1 else "")


def count(ns: list[int]) -> str:
    """How many seeds: "n = 3", or from fewest to most."""
    low, high = min(ns, default=0), max(ns, default=0)
    return f"n = {low}" if low == high else f"n = {low}{DASH}{high}"


def some(names: list[str], most: int = 6) -> str:
    """A list of names, in short where it is long."""
    rest = len(names) - most
    return ", ".join(names) if rest <= 1 else f"{', '.join(names[:most])} and {rest} more"


def interval(d: Difference | None) -> str:
    """A mean difference and its 95% interval, where there is one."""
    if d is None or not len(d.values):
        return NONE
    return signed(d.mean) + (f" [{signed(d.low)},{HARD}{signed(d.high)}]" if len(d.values) > 1 else "")


def human(values: list[float], unit: str = "", base: int = 1000) -> str:
    """The mean of a few numbers with a size word: 26.1k, 6.1M; with base 1024 Ki, Mi."""
    if not values:
        return NONE
    x, size = float(np.mean(values)), 0
    while abs(x) >= base and size < 4:
        x, size = x / base, size + 1
    word = ("", "k", "M", "G", "T")[size] if base == 1000 else ("", "Ki", "Mi", "Gi", "Ti")[size]
    return (f"{x:.0f}" if size == 0 or x >= 100 else f"{x:.1f}") + HARD * bool(unit) + word + unit


def millions(values: list[float]) -> str:
    return f"{values[0] / 1e6:.2f}M" if values else NONE


def post_line(label: str, evals, passes: float | None) -> str:
    """One run as the post prints it. `label` ends in the seed; `evals`: step -> bpb, or pairs."""
    points = [(int(step), bpb) for step, bpb in dict(evals).items() if bpb is not None]
    line = f"{label}: " + " / ".join(f"{step}: {bpb:.3f}" for step, bpb in points if step > 0)
    return line + (f"  ({passes:.{0 if passes >= 9.5 else 1}f} passes)" if passes else "")
