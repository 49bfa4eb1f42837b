"""Our numbers beside numbers from elsewhere: the post's, and those of records committed earlier."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from analysis import stats
from analysis.notes import beats_gzip
from analysis.runs import RATE
from analysis.stats import Difference
from analysis.study import Row, Study
from analysis.words import NONE, interval, signed
from storage import files

DATA = Path(__file__).parent.parent / "data"
AGREES, DISAGREES, UNKNOWN = "agrees", "disagrees", "cannot tell"
SEVERITY = (AGREES, UNKNOWN, DISAGREES)  # the word for several checkpoints is the last that any of them has


@dataclass(frozen=True)
class Check:
    """One published claim and what our runs say to it."""

    label: str
    kind: str  # behind, tie or closing
    claim: str  # in words
    section: str  # of the post
    theirs: list[float]  # differences to the baseline, in bits per byte, one a seed or the ends of a range
    ours: Difference
    step: int  # our checkpoint
    verdict: str
    why: str


def load() -> dict:
    return files.load(DATA / "published.yaml")


def sayings() -> dict[str, str]:
    """Swap -> what the documents say of it."""
    return files.load(DATA / "sayings.yaml")


def checks(found: Study, source: dict) -> list[Check]:
    """Each claim about a swap of this study. Where rates were swept, at the shared rate.

    None where no run has learned to beat gzip: such runs say nothing about the post's.
    """
    if not any(beats_gzip(record) for v in found.variants for record in v.done.values()):
        return []
    rows = {row.variant.swap: row for row in found.views[0].swaps if not set(row.variant.axes) - {RATE}}
    claims = [claim for claim in source["claims"] if claim["swap"] in rows and found.steps]
    told = [check for claim in claims for check in examine(claim, rows[claim["swap"]], found, source["runs"])]
    return told if found.scale == source["runs"]["scale"] else one_a_step(told)


def one_a_step(told: list[Check]) -> list[Check]:
    """Claims about two steps of the post that meet the same step of ours are one line: one test of ours."""
    lines: dict[tuple, Check] = {}
    for check in told:
        key = (check.label, check.kind, check.step)
        first = lines.get(key)
        if first is None or check.kind != "behind":
            lines[key if first is None else (*key, check.claim)] = check
        else:
            claim = f"{first.claim} and {check.claim.removeprefix('behind at ')}"
            lines[key] = replace(first, claim=claim, theirs=first.theirs + check.theirs)
    return list(lines.values())


def examine(claim: dict, row: Row, found: Study, posted: dict) -> list[Check]:
    """At the post's scale at the claim's own steps; elsewhere at our nearest checkpoint, or at each for "every"."""
    same, every = found.scale == posted["scale"], sorted(posted["bpb"]["baseline"][0])
    within = tolerance(claim, posted) if claim["kind"] == "tie" else 0.0
    if claim["step"] == "every" and not same:
        theirs = [d for step in every for d in differences(claim["swap"], step, posted)]
        weighed = [(step, weigh(claim, row, step, step, theirs, within, False, found)) for step in found.steps]
        mine, (ours, word, why) = max(weighed, key=lambda item: (SEVERITY.index(item[1][1]), reach(item[1][0])))
        why += f" at each of our {len(found.steps)} checkpoints; shown is the widest" * (word == AGREES)
        words = in_words(claim, "every checkpoint", within)
        return [Check(row.variant.label, claim["kind"], words, claim["section"], theirs, ours, mine, word, why)]
    wanted = every if claim["step"] == "every" else [claim["step"] if isinstance(claim["step"], int) else every[-1]]
    result = []
    for step in wanted:
        mine = min(found.steps, key=lambda s: (abs(s - step), -s))
        theirs = claim.get("difference") or differences(claim["swap"], step, posted)
        ours, word, why = weigh(claim, row, mine, step, theirs, within, same, found)
        words, section = in_words(claim, f"step {step:,}", within), claim["section"]
        result.append(Check(row.variant.label, claim["kind"], words, section, theirs, ours, mine, word, why))
    return result


def reach(d: Difference) -> float:
    """How far from zero an interval reaches."""
    return float(np.nan_to_num(max(abs(d.low), abs(d.high))))


def differences(swap: str, step: int, posted: dict) -> list[float]:
    """The post's, one for each seed, from the numbers it prints, if it does."""
    bpb = posted["bpb"]
    return [round(bpb[swap][seed][step] - bpb["baseline"][seed][step], 4) for seed in sorted(bpb.get(swap, {}))]


def tolerance(claim: dict, posted: dict) -> float:
    """How far from zero a tie may lie. `seeds`: as far as two seeds of one variant lie apart in the post."""
    if claim["tolerance"] != "seeds":
        return claim["tolerance"]
    both = (posted["bpb"]["baseline"], posted["bpb"][claim["swap"]])
    gaps = (max(column) - min(column) for v in both for column in zip(*(v[s].values() for s in v), strict=True))
    return round(max(gaps), 4)


def in_words(claim: dict, where: str, within: float) -> str:
    if claim["kind"] == "tie":
        return f"ties within {within:g} at {where}"
    if claim["kind"] == "closing":
        return f"gap still closing at {where}"
    return "behind at " + (where if isinstance(claim["step"], int) else "the end")


def weigh(
    claim: dict, row: Row, mine: int, step: int, theirs: list[float], within: float, same: bool, found: Study
) -> tuple[Difference, str, str]:
    """Our difference, the verdict on the claim, and the reason for the verdict."""
    ours, kind = row.at[mine], claim["kind"]
    if row.verdict not in (stats.BETTER, stats.WORSE, stats.SAME):
        return ours, UNKNOWN, row.verdict
    if same and mine != step:
        return ours, UNKNOWN, f"no checkpoint at step {step:,}"
    if kind == "closing":
        return closing(row, mine)
    final = row.verdict if mine == found.steps[-1] and not found.final_apart else ""
    if kind == "tie":
        if mine < step:
            return ours, UNKNOWN, "a tie late in training; ours ends sooner"
        return ours, *tie(ours, within, final)
    return ours, *behind(ours, theirs, same, final)


def behind(ours: Difference, theirs: list[float], same: bool, final: str) -> tuple[str, str]:
    """`final`: the table's verdict where this is the table's difference; it counts, and not the interval alone."""
    if ours.low > 0 and final in ("", stats.WORSE):
        size = "" if not same else size_of(ours, theirs)
        return AGREES, "same direction" + size
    if ours.high < 0 and final in ("", stats.BETTER):
        return DISAGREES, "opposite direction"
    if same and ours.low < 0 < ours.high < min(theirs):
        return DISAGREES, "our interval holds zero and ends below the post's difference"
    return UNKNOWN, f"{final}, as in the table" if final else "our interval holds zero"


def size_of(ours: Difference, theirs: list[float]) -> str:
    if ours.low > max(theirs):
        return ", larger"
    return ", smaller" if ours.high < min(theirs) else ", similar size"


def tie(ours: Difference, within: float, final: str) -> tuple[str, str]:
    """`final`: as in `behind`. A difference may be sure and yet within the tolerance: both are then said."""
    if -within <= ours.low and ours.high <= within:
        return AGREES, f"{final}, but " * (
            final in (stats.BETTER, stats.WORSE)
        ) + f"our interval lies within ±{within:g}"
    if final != stats.SAME and (ours.low > within or ours.high < -within):
        return DISAGREES, f"our interval lies beyond ±{within:g}"
    return UNKNOWN, f"our interval reaches beyond ±{within:g}"


def closing(row: Row, mine: int) -> tuple[Difference, str, str]:
    """Whether the difference shrank, seed by seed, since the checkpoint before."""
    steps = sorted(row.at)
    if mine == steps[0]:
        return row.at[mine], UNKNOWN, "one checkpoint alone"
    before = steps[steps.index(mine) - 1]
    change = stats.paired(row.at[mine].values, row.at[before].values)
    since = f"since step {before:,}"
    if row.at[before].low > 0 and change.high < 0:
        return change, AGREES, f"change of the difference {since}"
    return change, DISAGREES if change.low > 0 else UNKNOWN, f"change of the difference {since}"


def table(checks: list[Check]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows."""
    heads = ["swap", "the post", "its difference", "our difference [95%]", "at our step", "verdict", "because"]
    rows = []
    for c in checks:
        theirs = " to ".join(dict.fromkeys(signed(x) for x in (min(c.theirs), max(c.theirs)))) if c.theirs else NONE
        rows.append([c.label, c.claim, theirs, interval(c.ours), str(c.step), c.verdict, c.why])
    return heads, rows


def lines(checks: list[Check]) -> list[str]:
    """The same for a terminal."""
    rows = table(checks)[1]
    return [
        f"{label}: post {claim}{f' ({theirs})' if theirs != NONE else ''}; ours {ours} at step {step}: {word} ({why})"
        for label, claim, theirs, ours, step, word, why in rows
    ]


def caption(checks: list[Check], title: str) -> str:
    sections = "; ".join(dict.fromkeys(f'"{c.section}"' for c in checks))
    return (
        f'Published in "{title}", sections {sections}, on another text. At scale `blog` the same step is compared; '
        "at other scales only the direction, at our checkpoint nearest to the post's step. "
        "A tie is confirmed only where our whole interval lies within the stated tolerance. At our last step the "
        "table's verdict counts (Holm-corrected); the intervals at other steps, and of changes between steps, are "
        "for one comparison each."
    )
