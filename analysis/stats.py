"""What the numbers of a sweep say: spreads over seeds, paired differences, Holm's correction, verdicts.

Arrays in, numbers out; nothing here knows of runs or files.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import optimize, special, stats
from statsmodels.stats.multitest import multipletests

ALPHA, POWER, MIN_SEEDS = 0.05, 0.8, 3
BETTER, WORSE, SAME = "better", "worse", "not distinguishable"
TOO_FEW, INCOMPLETE, APART = "too few seeds", "incomplete", "not comparable"


@dataclass(frozen=True)
class Spread:
    mean: float
    sd: float  # ddof 1; nan for one seed
    n: int


@dataclass(frozen=True)
class Difference:
    """Swap minus baseline, paired by seed, in bits per byte: below zero the swap is better."""

    values: np.ndarray  # (n,)
    mean: float
    low: float  # 95% t interval; nan for one pair
    high: float
    sd: float
    p: float  # two-sided, uncorrected


def spread(values) -> Spread:
    values = np.asarray(values, float)
    sd = values.std(ddof=1) if len(values) > 1 else np.nan
    return Spread(float(values.mean()) if len(values) else np.nan, float(sd), len(values))


def paired(swap, baseline) -> Difference:
    """The mean of swap - baseline over the last axis, with its t interval and p-value. Inputs (..., n)."""
    values = np.asarray(swap, float) - np.asarray(baseline, float)
    n = values.shape[-1]
    if n == 0:
        return Difference(values, *[np.nan] * 5)
    mean = values.mean(-1)
    if n == 1:
        return Difference(values, mean, *[np.nan] * 4)
    sd = values.std(-1, ddof=1)
    half = special.stdtrit(n - 1, 1 - ALPHA / 2) * sd / n**0.5
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(mean == 0, 0.0, mean / (sd / n**0.5))  # a difference without any spread: p = 0, or 1 at zero
    return Difference(values, mean, mean - half, mean + half, sd, 2 * special.stdtr(n - 1, -np.abs(t)))


def holm(p: list[float]) -> np.ndarray:
    """Holm-adjusted p-values. A comparison that cannot be tested yet (nan) still counts as one of the family."""
    p = np.asarray(p, float)
    return multipletests(np.nan_to_num(p, nan=1.0), method="holm")[1] if len(p) else p


def verdict(difference: Difference, p: float) -> str:
    """The word for a difference with all its seeds; `p` is Holm-adjusted."""
    if len(difference.values) < MIN_SEEDS:
        return TOO_FEW
    if p >= ALPHA:
        return SAME
    return BETTER if difference.mean < 0 else WORSE


def resolvable(sds: list[float], ns: list[int], n: int, family: int) -> float:
    """The smallest difference that `n` pairs show with 80% power at Holm's strictest level, 0.05 / `family`.

    `sds`: standard deviations of the paired differences of each swap, pooled over their `ns`. nan for n < 2.
    """
    weights = np.asarray(ns, float) - 1
    if n < 2 or not weights.sum() > 0:
        return np.nan
    return effect(n, ALPHA / family) * float(np.sqrt(np.sum(weights * np.square(sds)) / weights.sum()))


@cache
def effect(n: int, alpha: float) -> float:
    """The effect, in standard deviations, that a two-sided t test of n pairs finds with 80% power.

    Averages the normal tail over quantiles of the chi-square under t's denominator: scipy's noncentral t,
    and statsmodels' solver upon it, give nan or stop early for the few seeds that are common here.
    """
    chi = np.sqrt(stats.chi2.ppf((np.arange(4000) + 0.5) / 4000, n - 1) / (n - 1))
    cut = special.stdtrit(n - 1, 1 - alpha / 2) * chi

    def lack(d: float) -> float:
        return POWER - np.mean(special.ndtr(d * n**0.5 - cut) + special.ndtr(-d * n**0.5 - cut))

    return optimize.brentq(lack, 0, 10 * (cut.max() + 1))
