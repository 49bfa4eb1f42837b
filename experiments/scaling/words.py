"""The report: constants with their intervals, and what speaks against them, in numbers."""

import math
from pathlib import Path

import numpy as np

from analysis.formats import markdown_table
from analysis.words import NONE, signed
from calculators import fit as fitting
from calculators.chinchilla import size
from calculators.fit import Fit, Points
from calculators.laws import TRAIN, Law
from config import UserError
from experiments.scaling.ladders import SWEEP, Ladder, fit, points, points_file, some


def report(ladders: list[Ladder], out: Path) -> str:
    parts = [
        "# A scaling law of one's own",
        f"L(N, D) = E + A / N^alpha + B / D^beta, fitted to the runs of the sweep `{SWEEP}`. {units(ladders)}",
        f"![Runs and fitted law, against symbols and against parameters]({SWEEP}.png)",
        markdown_table(constants(ladders)),
        f"In brackets: 95% intervals of {len(ladders[0].found.draws)} resamplings of the runs. C = {TRAIN} N D. The "
        "points, for another fit: "
        + ", ".join(f"`python -m calculators.chinchilla fit {points_file(out, ladder)}`" for ladder in ladders) + ".",
        "## How far it can be trusted",
        "\n".join(f"- {line}" for line in [line for ladder in ladders for line in doubts(ladder)] + limits(ladders)),
        "## The same fit with other choices",
        markdown_table(choices(ladders)),
        "Each line makes one choice otherwise. Where alpha and beta move out of their intervals above, those are too "
        "narrow: they know how the runs scatter, not whether the law is the right one.",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def units(ladders: list[Ladder]) -> str:
    factors = []
    for ladder in ladders:
        s = ladder.records[0]["summary"]
        factors.append(f"{math.log(2) * s['dev_bytes'] / s['dev_symbols']:.3f} times on {ladder.text}")
    return (
        "Loss in bits per byte of the whole dev set at the end of a run, the schedule of whose rate ended there, too; "
        f"in nats per symbol E, A and B are {' and '.join(factors)} what they are here, alpha and beta the same. "
        "N: parameters without the tables. D: symbols trained on, repeats counted."
    )


def constants(ladders: list[Ladder]) -> tuple[list[str], list[list[str]]]:
    rows = [[name] for name in fitting.CONSTANTS]
    rows += [["a, of N ~ C^a"], ["best N at the middle C"], ["symbols per parameter there"]]
    for ladder in ladders:
        found, drawn, C = ladder.found, ladder.found.laws(), middle(ladder.points)
        for k, row in enumerate(rows[: len(fitting.CONSTANTS)]):
            row.append(between(getattr(found.law, row[0]), found.interval(found.draws[:, k]), "{:.3g}".format))
        optimal = [law.optimal(C)[0] for law in drawn]
        rows[-3].append(between(found.law.exponent, found.interval([law.exponent for law in drawn]), "{:.2f}".format))
        rows[-2].append(between(found.law.optimal(C)[0], found.interval(optimal), size) + f" at {C:.1e}")
        rows[-1].append(between(found.law.ratio(C), found.interval([law.ratio(C) for law in drawn]), "{:.3g}".format))
    return ["constant", *(ladder.text for ladder in ladders)], rows


def between(value: float, ends: list[float], show) -> str:
    return f"{show(value)} [{show(ends[0])}, {show(ends[1])}]"


def middle(p: Points) -> float:
    """FLOPs in the middle of those of the points, on a log scale."""
    return TRAIN * math.sqrt(min(p.N * p.D) * max(p.N * p.D))


def doubts(ladder: Ladder) -> list[str]:
    """What the points of one text say against the fit, in numbers."""
    found, p, law = ladder.found, ladder.points, ladder.found.law
    misses = p.loss - law.loss(p.N, p.D)
    lines = [
        f"**{ladder.text}: range.** {len(p)} runs, {size(p.N.min())} to {size(p.N.max())} parameters "
        f"({p.N.max() / p.N.min():.0f} times), {size(p.D.min())} to {size(p.D.max())} symbols "
        f"({p.D.max() / p.D.min():.0f} times), {p.loss.min():.2f} to {p.loss.max():.2f} bits per byte. {reach(law, p)}",
        f"**{ladder.text}: fit.** {state(found)}. The law misses the runs by {rms(misses):.3f} bits per byte (root "
        f"mean square, at most {np.abs(misses).max():.3f}); {scatter(ladder)}.",
        f"**{ladder.text}: prediction.** {held_out(ladder)}",
        f"**{ladder.text}: repeats.** {repeats(ladder.passes.max())}",
    ]
    gaps = [f"**{ladder.text}: not finished,** so no point: {'; '.join(ladder.gaps)}."]
    return lines + gaps * bool(ladder.gaps)


def reach(law: Law, p: Points) -> str:
    """Whether the law's limit and its optimum are something that the points have seen."""
    best = law.optimal(middle(p))[0]
    inside = "one of the sizes' range" if p.N.min() <= best <= p.N.max() else "NOT in the range of the sizes"
    gap = (p.loss.min() - law.E) / (p.loss.max() - p.loss.min())
    return (
        f"The best N at the middle C is {inside}. E lies below the lowest run by {gap:.1f} times the span of all runs: "
        "it continues the curve, it was not measured."
    )


def state(found: Fit) -> str:
    word = "Converged" if found.converged else "NOT CONVERGED, do not use it"
    return f"{word}; {found.agreeing} of {fitting.STARTS} starts end there"


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def scatter(ladder: Ladder) -> str:
    """How far the seeds of one size and length lie apart."""
    several = [losses for losses in ladder.cells if len(losses) > 1]
    if not several:
        return "one seed each, so what of it is chance is not known"
    weights = [len(losses) - 1 for losses in several]
    pooled = math.sqrt(np.average([losses.var(ddof=1) for losses in several], weights=weights))
    return f"the seeds of one size and length scatter with a standard deviation of {pooled:.3f}"


def held_out(ladder: Ladder) -> str:
    """The runs of most compute, predicted from all others."""
    p = ladder.points
    work = p.N * p.D
    dearest = work == work.max()
    further = work.max() / work[~dearest].max()
    N, D, loss = p.N[dearest][0], p.D[dearest][0], p.loss[dearest].mean()
    rest = some(p, ~dearest)
    try:
        told = fit(rest).law.loss(N, D)
    except UserError as error:
        return f"Without the runs of most compute there is no fit: {error}."
    return (
        f"{size(N)} parameters on {size(D)} symbols, the most compute here, {further:.1f} times the next, reach "
        f"{loss:.3f}; a fit without them says {told:.3f} ({signed(told - loss)}). Further out is a guess."
    )


def repeats(most: float) -> str:
    words = f"The longest runs see the text {most:.2f} times"
    if most <= 1:
        return f"{words}: nothing is seen twice, but for windows that overlap by chance."
    return (
        f"{words}, and D counts a repeated symbol like a fresh one. Up to about four passes that costs large models "
        "little (Muennighoff et al. 2023, arXiv:2305.16264); for these it was not measured."
    )


def limits(ladders: list[Ladder]) -> list[str]:
    """What holds for all of these runs, whatever their numbers."""
    knobs = [record["config"] for ladder in ladders for record in ladder.records]
    rates, depths = ({k[key] for k in knobs} for key in ("train.lr", "model.n_layer"))
    rate, depth = (" and ".join(f"{value:g}" for value in sorted(values)) for values in (rates, depths))
    return [
        f"**One rate for all sizes:** {rate}. A width that it suits badly ends higher than it could, and the fit takes "
        "that for an effect of size. A grid of rates for each width would tell.",
        f"**Only the width grows**, at {depth} layers, and a step is {step_symbols(knobs)} symbols whatever the size.",
        "**Runs of minutes.** Warm-up and the first hundred steps are a good part of the shortest; the law is meant "
        "for what comes after.",
        "**Intervals** come from resampling the runs of a small grid, each seed as if it were a setting of its own. "
        "They assume that the law is right.",
        "**Large models** are another matter: other text, tokens for symbols, for each size the rate that suits it.",
    ]  # fmt: skip


def step_symbols(knobs: list[dict]) -> str:
    return " or ".join(f"{n:,}" for n in sorted({k["train.batch_size"] * k["model.context"] for k in knobs}))


def choices(ladders: list[Ladder]) -> tuple[list[str], list[list[str]]]:
    """The fit again, with one choice made otherwise; a choice that changes nothing is left out."""
    rows = []
    for ladder in ladders:
        p = ladder.points
        N, D = p.N, p.D
        kept = {
            "without the smallest size": min(N) < N,
            "without the largest size": max(N) > N,
            "without the shortest runs": min(D) < D,
            "without runs that repeat the text": ladder.passes <= 1,
        }
        ways = {"all runs": p, "tables counted as parameters": points(ladder.records, "total")}
        ways |= {words: some(p, mask) for words, mask in kept.items() if not mask.all()}
        rows += [[f"{ladder.text}, {words}", str(len(its)), *again(its)] for words, its in ways.items()]
    return ["fit to", "runs", "E", "alpha", "beta", "a", "because"], rows


def again(p: Points) -> list[str]:
    try:
        found = fit(p)
    except UserError as error:
        return [NONE] * 4 + [str(error)]
    law = found.law
    numbers = [f"{value:.2f}" for value in (law.E, law.alpha, law.beta, law.exponent)]
    return [*numbers, "" if found.converged else "not converged"]
