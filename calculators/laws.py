"""Scaling laws as arithmetic: loss of N parameters after D tokens, and the N and D that a budget is best spent on.

Training costs C = 6 N D FLOPs (Kaplan et al. 2020, arXiv:2001.08361), serving a token 2 N.
"""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from config import UserError, lookup
from storage import files

SOURCE = Path(__file__).parent.parent / "data" / "scaling_laws.yaml"
TRAIN, SERVE = 6, 2  # FLOPs per parameter and token


@dataclass(frozen=True)
class Law:
    """L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, arXiv:2203.15556, approach 3)."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    label: str = ""
    source: str = ""

    def loss(self, N, D):
        return self.E + self.A / N**self.alpha + self.B / D**self.beta

    @property
    def exponent(self) -> float:
        """a of N* ~ C^a."""
        return self.beta / (self.alpha + self.beta)

    def optimal(self, C: float) -> tuple[float, float]:
        """(N, D) of the least loss for C FLOPs: where alpha A / N^alpha = beta B / D^beta."""
        balance = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        N = balance * (C / TRAIN) ** self.exponent
        return N, C / TRAIN / N

    def ratio(self, C: float) -> float:
        """Tokens per parameter of the compute-optimal model."""
        N, D = self.optimal(C)
        return D / N

    def tokens(self, loss: float, N: float) -> float:
        """After which N parameters reach a loss; infinite where they never do."""
        rest = loss - self.E - self.A / N**self.alpha
        return (self.B / rest) ** (1 / self.beta) if rest > 0 else math.inf


@cache
def fits() -> dict[str, Law]:
    return {name: Law(**plain) for name, plain in files.load(SOURCE).items()}


def fit_named(name: str) -> Law:
    """Raises UserError with the nearest name."""
    return lookup(fits(), name.strip().lower(), "--fit")


def require_reachable(law: Law, loss: float) -> None:
    """Raises UserError for a loss that no model reaches."""
    if loss <= law.E:
        raise UserError(f"loss {loss:g}: no model reaches it under {law.label}, whose limit is E = {law.E:g}")


def same_loss(law: Law, loss: float) -> float:
    """The least FLOPs whose compute-optimal model reaches a loss. Raises UserError where none does."""
    require_reachable(law, loss)

    def above(log_c):
        return law.loss(*law.optimal(math.exp(log_c))) - loss

    low = high = math.log(1e20)
    while above(low) < 0 and low > -100:
        low -= 10
    while above(high) > 0 and high < 500:
        high += 10
    if above(low) * above(high) > 0:
        raise UserError(f"loss {loss:g}: out of every range of compute under {law.label}")
    return math.exp(brentq(above, low, high, xtol=1e-13))


@dataclass(frozen=True)
class Lifetime:
    """A size that is cheapest over training and serving, and the compute-optimal one of the same loss beside it."""

    loss: float
    served: float  # tokens
    N: float
    D: float
    training: float  # FLOPs
    serving: float
    optimal_N: float
    optimal_total: float


def lifetime(law: Law, loss: float, served: float) -> Lifetime:
    """Minimizes 6 N D + 2 N served over the N and D that reach a loss (Sardana et al. 2024, arXiv:2401.00448).

    Raises UserError where no model reaches the loss.
    """
    largest, _ = law.optimal(same_loss(law, loss))  # serving pays for smaller models alone
    smallest = (law.A / (loss - law.E)) ** (1 / law.alpha)  # which reaches the loss after infinitely many tokens

    def total(log_n):
        N = math.exp(log_n)
        return math.log(TRAIN * N * law.tokens(loss, N) + SERVE * N * served)

    bounds = (math.log(smallest) + 1e-9, math.log(largest))
    N = largest if not served else math.exp(minimize_scalar(total, bounds=bounds, options={"xatol": 1e-10}).x)
    D = law.tokens(loss, N)
    whole = TRAIN * largest * law.tokens(loss, largest) + SERVE * largest * served
    return Lifetime(loss, served, N, D, TRAIN * N * D, SERVE * N * served, largest, whole)


def exponent_without_tables(law: Law, sizes, vocab: int, aspect: float) -> float:
    """What exponent a of N ~ C^a a study finds that counts neither the tables' parameters nor their compute.

    The law holds for all parameters. A model of n others, 12 D^2 a layer and D = aspect x layers, has a table of
    vocab x D besides (Pearce & Song 2024, arXiv:2406.12907). `sizes`: the range of n, from least to most.
    """
    sizes = np.asarray(sizes, float)
    widths = (aspect * sizes / 12) ** (1 / 3)
    whole, slope = sizes + vocab * widths, 1 + vocab * widths / (3 * sizes)  # all parameters, and d whole / d n
    gain = law.alpha * law.A * slope * sizes / whole ** (law.alpha + 1)  # of the first term, by a step in log n
    D = (law.beta * law.B / gain) ** (1 / law.beta)  # where the second term loses as much
    return float(np.polyfit(np.log(TRAIN * sizes * D), np.log(sizes), 1)[0])
