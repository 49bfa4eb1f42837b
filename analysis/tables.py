"""A study's tables as heads and cells, their captions, and the runs in the post's own lines."""

import numpy as np

from analysis.guard import compared
from analysis.notes import told
from analysis.runs import RATE
from analysis.stats import ALPHA, POWER
from analysis.study import Study, Variant, View
from analysis.words import (
    DASH,
    HARD,
    NONE,
    TIMES,
    count,
    human,
    interval,
    millions,
    plain_number,
    post_line,
    show_spread,
)  # fmt: skip

Table = tuple[list[str], list[list[str]]]  # heads, rows


def main_table(view: View, study: Study) -> Table:
    """What was measured: bpb at the checkpoints, the difference, the verdict."""
    apart = study.final_apart
    heads = ["variant", *(f"step {s}" for s in study.steps)]
    if apart:
        heads.append("final")
    elif study.steps:
        heads[-1] += ", final"
    heads += ["difference [95%]", "verdict", "resolves"] if view.swaps else []
    rows = []
    for row in view.rows:
        v = row.variant
        cells = [v.label, *(show_spread(v.at(s)) for s in study.steps), *([show_spread(v.final)] if apart else [])]
        if view.swaps:
            cells += [interval(row.final), row.verdict or NONE, plain_number(row.resolvable)]
        rows.append([*cells, kept(v)])
    return [*heads, "seeds"], rows


def kept(v: Variant) -> str:
    return f"{len(v.done)}/{len(v.records)}"


def cost_table(view: View) -> Table:
    """What it cost, and the best point on the way."""
    heads = ["variant", "best @ step (selected on dev)", "non-embedding", "parameters", "matched"]
    heads += ["FLOP/token", "KV/token", "tokens/s", "memory"]
    rows = []
    for v in (row.variant for row in view.rows):
        params = v.summaries("params")
        size = [millions([p[key] for p in params]) for key in ("non_embedding", "total")]
        cache = human(v.summaries("kv_bytes_per_token"), "B", base=1024)
        speed, memory = human(v.summaries("tokens_per_s")), human([mb * 1e6 for mb in v.summaries("peak_mb")], "B")
        rows.append([v.label, best(v), *size, matched(v), human(v.summaries("flops_per_token")), cache, speed, memory])
    return heads, rows


def best(v: Variant) -> str:
    steps = sorted({int(step) for step in v.summaries("best_step")})
    if not steps:
        return NONE
    return f"{show_spread(v.best)} @{HARD}" + (f"{steps[0]}" if len(steps) == 1 else f"{steps[0]}{DASH}{steps[-1]}")


def ratio(v: Variant) -> float:
    """Non-embedding parameters over the baseline's at the same size; nan where unknown."""
    mine, base = v.summaries("params"), v.summaries("baseline_non_embedding")
    return mine[0]["non_embedding"] / base[0] if mine and base else np.nan


def matched(v: Variant) -> str:
    r = ratio(v)
    if np.isnan(r):
        return NONE
    return "yes" if abs(r - 1) <= 0.01 and v.about.get("matched") is not False else f"no, {r:.2f}{TIMES}"


def grid_table(study: Study) -> Table:
    """With a grid of learning rates: the mean final bpb at each."""
    found = sorted({rate for by_rate in study.grid.values() for rate in by_rate if not np.isnan(rate)})
    rows = []
    for by_rate in study.grid.values():
        first = next(iter(by_rate.values()))
        rows.append([first.label.replace(f", lr={first.axes.get(RATE)}", "")])
        for rate in found:
            v = by_rate.get(rate)
            rows[-1].append(NONE if v is None else f"{show_spread(v.final)} ({kept(v)})")
    return ["final bpb at learning rate", *(f"{rate:g}" for rate in found)], rows


def swaps_table(studies: list[Study]) -> Table | None:
    """What each swap puts in the place of what; None where none says so."""
    found = {}
    for v in (v for study in studies for v in study.variants):
        about = v.about
        if about.get("replaces") or about.get("paper"):
            words = "yes" if about.get("matched", True) else f"no: {about.get('reason') or 'no reason given'}"
            label = str(about.get("label") or v.swap)
            found[tuple(" ".join(str(about.get(key) or NONE).split()) for key in ("replaces", "paper")), label] = words
    rows = [[label, *words, matched] for (words, label), matched in found.items()]
    return (["swap", "replaces", "paper", "matched?"], rows) if rows else None


def caption(study: Study) -> str:
    """What the numbers of the main table are: for all views, which have the same columns."""
    text = "Bits per byte on the whole dev set, lower is better: mean ± sd over the finished seeds (ddof 1). "
    swaps, family = study.views[0].swaps, len(study.views[0].family)
    if swaps:
        text += (
            "Difference: swap minus baseline at the end, paired by seed, with its 95% t interval, "
            f"{count([len(row.final.values) for row in swaps])} seeds. Verdict: paired t test, "
            f"Holm-corrected over {family} comparison{'s' * (family != 1)}, level {ALPHA}. Resolves: the "
            f"smallest difference that so many seeds would show with {POWER:.0%} power. "
        )
    return text + "A seed changes the initial weights, the batches and the dropout."


def cost_caption(study: Study) -> str:
    return (
        f"Over the finished seeds, {seeds(study)}: best as mean ± sd (ddof 1); tokens/s and memory as means; "
        "the rest is the same for every seed. Tokens/s also tells what else the machine did at the time."
    )


def seeds(study: Study) -> str:
    """On how many finished seeds the means stand: n = 3."""
    return count([len(row.variant.done) for row in study.views[-1].rows])


def anchors(study: Study) -> list[str]:
    """What common compressors need for the same dev bytes: one line a dev text."""
    found = []
    for record in (record for v in study.variants for record in v.done.values()):
        bpb = record["summary"]["anchors"]
        words = [f"{name} {bpb[name]:.3f}" for name in ("gzip", "bzip2", "xz") if bpb.get(name) is not None]
        found.append(f"Compressors on the same dev text, in bits per byte: {', '.join(words)}.")
    return list(dict.fromkeys(found))


def made(study: Study) -> list[str]:
    """How the runs were evaluated and trained: the same for all that are compared, or they would not be there."""
    found = {}
    for group in compared([record for v in study.variants for record in v.done.values()]):
        first = group[0]
        protocol, machine = first["summary"]["protocol"], first["provenance"]
        words = [f"text {first['text']}", f"{protocol.get('kind')} symbols"]
        words += [f"{key} {protocol.get(key)}" for key in ("context", "stride")]
        words += [f"{key} {str(machine.get(key)).lower()}" for key in ("device", "threads", "precision", "compile")]
        axes = [f"{key}={value}" for key, value in first["axes"].items() if key != RATE]
        found.setdefault(", ".join(words), []).append(" ".join(axes))
    if len(found) == 1:
        return [f"All runs: {words}." for words in found]
    return [f"Runs with {' or '.join(axes)}: {words}." for words, axes in found.items()]


def post_lines(study: Study) -> list[str]:
    """All runs in the post's order, seed by seed; a run without a result says why after what it reached."""
    width = max(len(v.label) for v in study.variants)
    found = [(r["seed"], v, r) for v in study.variants for r in v.records]
    lines = []
    for seed, v, record in sorted(found, key=lambda item: item[0]):
        done = seed in v.done
        passes = record["summary"]["passes"] if done else None
        line = post_line(f"{v.label:<{width}} s{seed}", record.get("evals", []), passes)
        lines.append(line if done else f"{line}  ({told(record)})")
    return lines
