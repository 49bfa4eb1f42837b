"""Our numbers beside numbers from elsewhere: the post's, and those of records committed earlier."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from analysis import stats
from analysis.runs import PROTOCOL
from analysis.stats import Difference
from analysis.study import RATE, Row, Study, study
from analysis.words import NONE, interval, signed

SOURCE = Path(__file__).parent.parent / "data" / "published.yaml"
AGREES, DISAGREES, UNKNOWN = "agrees", "disagrees", "cannot tell"


@dataclass(frozen=True)
class Check:
    """One published claim and what our runs say to it."""

    label: str
    claim: str  # in words
    section: str  # of the post
    theirs: list[float]  # differences to the baseline, in bits per byte, one a seed or the ends of a range
    ours: Difference
    step: int  # our checkpoint
    verdict: str
    why: str


def load(path: Path = SOURCE) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def checks(found: Study, source: dict) -> list[Check]:
    """Each claim about a swap of this study. Where rates were swept, at the shared rate."""
    rows = {row.variant.swap: row for row in found.views[0].swaps if not set(row.variant.axes) - {RATE}}
    claims = [claim for claim in source["claims"] if claim["swap"] in rows and found.steps]
    return [check for claim in claims for check in examine(claim, rows[claim["swap"]], found, source["runs"])]


def examine(claim: dict, row: Row, found: Study, posted: dict) -> list[Check]:
    """At the post's scale at the claim's own steps, elsewhere at our checkpoint that is nearest."""
    same, every = found.scale == posted["scale"], sorted(posted["bpb"]["baseline"][0])
    wanted = [claim["step"]] if isinstance(claim["step"], int) else every[-1:]
    if same and claim["step"] == "every":
        wanted = every
    result = []
    for step in wanted:
        mine = min(found.steps, key=lambda s: (abs(s - step), -s))
        told = every if claim["step"] == "every" and not same else [step]
        theirs = claim.get("difference") or [d for s in told for d in differences(claim["swap"], s, posted)]
        within = tolerance(claim, posted) if claim["kind"] == "tie" else 0.0
        ours, word, why = weigh(claim, row, mine, step, theirs, within, same)
        words = in_words(claim, f"step {step:,}" if len(told) == 1 else "every checkpoint", within)
        result.append(Check(row.variant.label, words, claim["section"], theirs, ours, mine, word, why))
    return result


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
    claim: dict, row: Row, mine: int, step: int, theirs: list[float], within: float, same: bool
) -> tuple[Difference, str, str]:
    """Our difference, the verdict on the claim, and the reason for the verdict."""
    ours, kind = row.at[mine], claim["kind"]
    if row.verdict in (stats.INCOMPLETE, stats.TOO_FEW):
        return ours, UNKNOWN, row.verdict
    if same and mine != step:
        return ours, UNKNOWN, f"no checkpoint at step {step:,}"
    if kind == "closing":
        return closing(row, mine)
    if kind == "tie":
        if mine < step and claim["step"] != "every":
            return ours, UNKNOWN, "a tie late in training; ours ends sooner"
        return ours, *tie(ours, within)
    return ours, *behind(ours, theirs, same)


def behind(ours: Difference, theirs: list[float], same: bool) -> tuple[str, str]:
    if ours.low > 0:
        size = "" if not same else size_of(ours, theirs)
        return AGREES, "same direction" + size
    if ours.high < 0:
        return DISAGREES, "opposite direction"
    if same and ours.high < min(theirs):
        return DISAGREES, "our interval holds zero and ends below the post's difference"
    return UNKNOWN, "our interval holds zero"


def size_of(ours: Difference, theirs: list[float]) -> str:
    if ours.low > max(theirs):
        return ", larger"
    return ", smaller" if ours.high < min(theirs) else ", similar size"


def tie(ours: Difference, within: float) -> tuple[str, str]:
    if -within <= ours.low and ours.high <= within:
        return AGREES, f"our interval lies within ±{within:g}"
    if ours.low > within or ours.high < -within:
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
        "A tie is confirmed only where our whole interval lies within the stated tolerance."
    )


def compare(old: list[dict], new: list[dict]) -> list[str]:
    """How `new` records of a sweep stand to those committed before: one line a variant, [] where nothing is shared."""
    before = {row.variant.name: row for row in study(old).views[0].rows if row.variant.done}
    told = []
    for row in study(new).views[0].rows:
        v, past = row.variant, before.get(row.variant.name)
        if not past or not v.done:
            continue
        ours, theirs = v.final.mean, past.variant.final.mean
        line = f"{v.label}: {ours:.3f} now, {theirs:.3f} committed ({ours - theirs:+.3f})"
        if row.final is not None and past.final is not None:
            same = row.verdict == past.verdict
            line += f"; {row.verdict}, " + ("as committed" if same else f"committed: {past.verdict}")
        if protocol(v.done) != protocol(past.variant.done):
            line += "; not comparable: other text or evaluation"
        told.append(line)
    return told


def protocol(done: dict[int, dict]) -> list:
    first = next(iter(done.values()))["summary"]["protocol"]
    return [first.get(key) for key in PROTOCOL]
