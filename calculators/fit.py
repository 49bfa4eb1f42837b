"""Hoffmann's third approach: L(N, D) = E + A / N^alpha + B / D^beta fitted to the losses of many runs.

Huber loss with delta 1e-3 of the log loss, the law in log-sum-exp form, L-BFGS from the best points of a grid
(Hoffmann et al. 2022, arXiv:2203.15556, appendix D.3), until the gradient is zero, which the original was not
(Besiroglu et al. 2024, arXiv:2404.10102).
"""

import csv
import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from calculators.laws import Law
from config import UserError
from storage import files

DELTA = 1e-3  # of the Huber loss, in log loss
CONSTANTS = ("E", "A", "B", "alpha", "beta")
COLUMNS = ("params", "tokens", "loss")
GRID = {"e": np.arange(-1, 1.1, 0.5), "ab": np.arange(0, 26, 5.0), "exponent": np.arange(0, 2.1, 0.5)}
STARTS = 24  # points of the grid, the best, from which the search goes on
CLOSE = 1e-4  # gradient per point at which a search counts as converged; a start has about 1


@dataclass(frozen=True)
class Points:
    """One number a run: parameters, training tokens, final loss in nats per token."""

    N: np.ndarray
    D: np.ndarray
    loss: np.ndarray

    def __len__(self) -> int:
        return len(self.loss)


@dataclass(frozen=True)
class Fit:
    law: Law
    converged: bool
    gradient: float  # the largest component, per point
    agreeing: int  # of the STARTS, how many ended at the same objective
    objective: float
    draws: np.ndarray  # constants of the bootstrap's refits, (draws, 5)
    points: Points

    def interval(self, values: np.ndarray) -> list[float]:
        """The 95% percentile interval of one number over the bootstrap."""
        return [float(end) for end in np.percentile(values, [2.5, 97.5])] if len(values) else [np.nan, np.nan]

    def laws(self) -> list[Law]:
        """Of the refits that have an optimum: both exponents above 0."""
        return [Law(*map(float, draw)) for draw in self.draws if min(draw[3:]) > 0]


class Objective:
    """Sum over the points of weight x Huber / delta, and its gradient, in five numbers that hardly depend on another.

    The logs of N and D are centred: the second and third number are the logs of the two terms at the middle point.
    """

    def __init__(self, points: Points):
        self.x, self.y = np.log(points.N), np.log(points.D)
        self.middle = self.x.mean(), self.y.mean()
        self.x, self.y, self.z = self.x - self.middle[0], self.y - self.middle[1], np.log(points.loss)

    def residuals(self, p):
        """Log loss of the law less that of the points, and the share of each term: p (..., 5) -> (..., n), 3 of it."""
        e, a, b, alpha, beta = (p[..., k, None] for k in range(5))
        terms = np.stack(np.broadcast_arrays(e, a - alpha * self.x, b - beta * self.y))
        top = terms.max(0)
        weights = np.exp(terms - top)
        whole = weights.sum(0)
        return top + np.log(whole) - self.z, weights / whole

    def value(self, p):
        """Of many p at once."""
        r = np.abs(self.residuals(p)[0])
        return np.where(r <= DELTA, r**2 / (2 * DELTA), r - DELTA / 2).sum(-1)

    def with_gradient(self, p, weight):
        r, share = self.residuals(p)
        size = np.abs(r)
        value = (weight * np.where(size <= DELTA, r**2 / (2 * DELTA), size - DELTA / 2)).sum()
        pull = weight * np.clip(r / DELTA, -1, 1)
        e, a, b = pull * share
        return value, np.array([e.sum(), a.sum(), b.sum(), -(a * self.x).sum(), -(b * self.y).sum()])

    def grid(self) -> np.ndarray:
        """Hoffmann's grid of starts, best first, in these numbers."""
        axes = (GRID["e"], GRID["ab"], GRID["ab"], GRID["exponent"], GRID["exponent"])
        p = np.array(list(itertools.product(*axes)))
        p[:, 1] -= p[:, 3] * self.middle[0]
        p[:, 2] -= p[:, 4] * self.middle[1]
        return p[np.argsort(self.value(p), kind="stable")]

    def search(self, start, weight):
        """L-BFGS until nothing moves. Returns (objective, numbers, largest component of the gradient per point)."""
        options = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 20}
        found = minimize(self.with_gradient, start, (weight,), "L-BFGS-B", jac=True, options=options)
        return found.fun, found.x, np.abs(found.jac).max() / len(self.z)

    def constants(self, p) -> list[float]:
        """E, A, B, alpha, beta."""
        e, a, b, alpha, beta = p
        return [*np.exp([e, a + alpha * self.middle[0], b + beta * self.middle[1]]), alpha, beta]


def fit(points: Points, draws: int = 200, seed: int = 0) -> Fit:
    """The best fit, and `draws` refits of resampled points that start from it. Raises UserError: see `require_fit`."""
    require_fit(points)
    objective, ones = Objective(points), np.ones(len(points))
    found = [objective.search(start, ones) for start in objective.grid()[:STARTS]]
    best, p, gradient = min(found, key=lambda one: one[0])
    same = sum(bool(value - best < 1e-6 * max(best, 1e-9)) for value, *_ in found)
    draw = np.random.default_rng(seed)
    weights = draw.multinomial(len(points), ones / len(points), size=draws)
    refits = [objective.constants(objective.search(p, weight)[1]) for weight in weights]
    law = Law(*map(float, objective.constants(p)), label="this fit")
    for name, column in (("alpha", "params"), ("beta", "tokens")):
        if getattr(law, name) <= 0:
            raise UserError(
                f"{name} comes out as {getattr(law, name):.3g}: in these points loss does not fall with {column}"
            )
    return Fit(law, bool(gradient < CLOSE), float(gradient), same, float(best), np.array(refits), points)


def require_fit(points: Points) -> None:
    """Raises UserError where these points cannot tell five constants apart."""
    if len(points) <= len(CONSTANTS):
        raise UserError(
            f"{len(points)} points for {len(CONSTANTS)} constants: at least {len(CONSTANTS) + 1} are needed"
        )
    for name, values in (("params", points.N), ("tokens", points.D), ("loss", points.loss)):
        if len(np.unique(values)) == 1:
            raise UserError(f"{name} is {values[0]:g} in all {len(points)} points: it must vary to be fitted")
    x, y = np.log(points.N), np.log(points.D)
    if abs(np.corrcoef(x, y)[0, 1]) > 1 - 1e-9:
        raise UserError("tokens are a fixed power of params in all points: their two terms cannot be told apart")


def rounded(law: Law) -> Law:
    """The law with its exponents, and nothing else, rounded to two digits after the point."""
    return replace(law, alpha=round(law.alpha, 2), beta=round(law.beta, 2))


def leave_out(points: Points, count: int) -> Points:
    """Without the `count` highest losses."""
    kept = np.sort(np.argsort(points.loss, kind="stable")[: len(points) - count])
    return Points(points.N[kept], points.D[kept], points.loss[kept])


def read(path: Path) -> Points:
    """A CSV file with the columns params, tokens and loss; others are passed over.

    Raises UserError: no such file, a column missing, a value missing or not above 0.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read: {files.first_line(error)}") from None
    if not rows:
        raise UserError(f"{path}: no points; a header line params,tokens,loss and a line each are needed")
    if missing := [name for name in COLUMNS if name not in rows[0]]:
        there = ", ".join(map(str, rows[0]))
        raise UserError(f"{path}: no column {', '.join(missing)}; needed are {', '.join(COLUMNS)}, there are {there}")
    table = [
        [number(row[name], f"{path}: line {line}, {name}") for name in COLUMNS] for line, row in enumerate(rows, 2)
    ]
    return Points(*np.array(table).T)


def number(text: str | None, where: str) -> float:
    if text is None or not text.strip():
        raise UserError(f"{where}: no value")
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{where}: {text} is no number") from None
    if not 0 < value < np.inf:
        raise UserError(f"{where}: {text} must be a number above 0")
    return value
