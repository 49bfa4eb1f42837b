"""A study as Markdown, CSV, LaTeX, plain text, and in the post's own lines. The same study gives the same bytes."""

import csv
import io
import re

import numpy as np
from tabulate import tabulate

from analysis import published
from analysis.published import Check
from analysis.stats import ALPHA, POWER
from analysis.study import RATE, Row, Study, Variant, View, told
from analysis.words import (
    DASH,
    HARD,
    MINUS,
    NONE,
    TIMES,
    human,
    interval,
    millions,
    plain_number,
    post_line,
    spread,
)  # fmt: skip

MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_[]|~<>$#"} | {"&": "&amp;"})
LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}"}
    | {">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", MINUS: "$-$", TIMES: r"$\times$", HARD: "~"}
    | {NONE: "---", DASH: "--"}
)
Table = tuple[list[str], list[list[str]]]  # heads, rows


def final_apart(study: Study) -> bool:
    """Whether some run ends at another step than the last common checkpoint, so that "final" needs its own column."""
    ends = {r["evals"][-1][0] for v in study.variants for r in v.done.values()}
    return ends != set(study.steps[-1:])


def main_table(view: View, study: Study) -> Table:
    """What was measured: bpb at the checkpoints, the difference, the verdict."""
    apart = final_apart(study)
    heads = ["variant", *(f"step {s}" for s in study.steps)]
    if apart:
        heads.append("final")
    elif study.steps:
        heads[-1] += ", final"
    heads += ["difference [95%]", "verdict", "resolves"] if view.swaps else []
    rows = []
    for row in view.rows:
        v = row.variant
        cells = [v.label, *(spread(v.at(s)) for s in study.steps), *([spread(v.final)] if apart else [])]
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
    return f"{v.best.mean:.3f} @{HARD}" + (f"{steps[0]}" if len(steps) == 1 else f"{steps[0]}{DASH}{steps[-1]}")


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
            rows[-1].append(NONE if v is None else f"{spread(v.final)} ({kept(v)})")
    return ["final bpb at learning rate", *(f"{rate:g}" for rate in found)], rows


def caption(study: Study) -> str:
    """What the numbers of the main table are: for all views, which have the same columns."""
    text = "Bits per byte on the whole dev set, lower is better: mean ± sd over the finished seeds (ddof 1). "
    swaps = study.views[0].swaps
    if swaps:
        seeds = sorted({len(row.final.values) for row in swaps})
        text += (
            "Difference: swap minus baseline at the end, paired by seed, with its 95% t interval, "
            f"n = {DASH.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seeds. Verdict: paired t test, "
            f"Holm-corrected over {len(swaps)} comparison{'s' * (len(swaps) > 1)}, level {ALPHA}. Resolves: the "
            f"smallest difference that so many seeds would show with {POWER:.0%} power. "
        )
    return text + "A seed changes the initial weights, the batches and the dropout."


def anchors(study: Study) -> str:
    """What common compressors need for the same dev bytes."""
    for record in (record for v in study.variants for record in v.done.values()):
        found = record["summary"]["anchors"]
        words = [f"{name} {found[name]:.3f}" for name in ("gzip", "bzip2", "xz") if found.get(name) is not None]
        return f"Compressors on the same dev text, in bits per byte: {', '.join(words)}."
    return ""


def made(study: Study) -> str:
    """How the runs of the tables were evaluated and trained: the same for all, or they would not be there."""
    for record in (record for v in study.variants for record in v.done.values()):
        protocol, machine = record["summary"]["protocol"], record["provenance"]
        words = [f"text {record['text']}", f"{protocol.get('kind')} symbols"]
        words += [f"{key} {protocol.get(key)}" for key in ("context", "stride")]
        words += [f"{key} {str(machine.get(key)).lower()}" for key in ("device", "threads", "precision", "compile")]
        return f"All runs: {', '.join(words)}."
    return ""


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


def markdown_table(table: Table) -> str:
    heads, rows = table
    cells = [[row[0].translate(MARKDOWN), *row[1:]] for row in rows]  # users write the first column, we the others
    align = [
        "left" if n == 0 or head in ("verdict", "because", "the post") else "right" for n, head in enumerate(heads)
    ]
    return tabulate(cells, heads, tablefmt="pipe", disable_numparse=True, colalign=align)


def main_markdown(study: Study) -> str:
    """The main table of each view, and their caption."""
    parts = []
    for view in study.views:
        parts += [f"**{view.title}**"] * bool(view.title) + [markdown_table(main_table(view, study))]
    return "\n\n".join([*parts, caption(study).translate(MARKDOWN)])


def markdown(study: Study, checks: list[Check], title: str = "") -> str:
    """All of a sweep's tables with what must be said below them."""
    parts = [main_markdown(study)]
    if study.grid:
        parts.append(markdown_table(grid_table(study)))
    told_below = [*(f"Not finished, so in no mean: {gap}." for gap in study.gaps), *study.notes]
    told_below += [anchors(study), made(study)]
    parts.append("\n".join(f"- {note.translate(MARKDOWN)}" for note in told_below if note))
    parts += ["#### What it cost", markdown_table(cost_table(study.views[-1]))]
    lines = "\n".join(post_lines(study))
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", lines)), 3)
    parts += ["#### Run by run", f"{fence}text\n{lines}\n{fence}"]
    if checks:
        parts += [
            "#### Beside the post's numbers",
            markdown_table(published.table(checks)),
            published.caption(checks, title),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def latex(study: Study) -> str:
    """Tables for a paper; needs the package booktabs."""
    titled = [(view, f"{view.title}. " if view.title else "") for view in study.views]
    tables = [(main_table(view, study), title + caption(study)) for view, title in titled]
    tables.append((cost_table(study.views[-1]), "What it cost."))
    return "\n".join(latex_table(table, words) for table, words in tables)


def latex_table(table: Table, words: str) -> str:
    heads, rows = ([[cell.translate(LATEX) for cell in row] for row in part] for part in ([table[0]], table[1]))
    body = [" & ".join(row) + r" \\" for row in heads + rows]
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{words.translate(LATEX)}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(table[0]) - 1)}}}", r"\toprule", body[0], r"\midrule", *body[1:]]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def csv_rows(study: Study) -> list[dict]:
    """Every number of the tables, one dict a row, unrounded; None where there is none."""
    return [csv_row(row, view, study) for view in study.views for row in view.rows]


def csv_row(row: Row, view: View, study: Study) -> dict:
    v, d = row.variant, row.final
    cells = {"view": view.title, "variant": v.name, "label": v.label, "swap": v.swap, "seam": v.about.get("seam", "")}
    for step in study.steps:
        cells |= {f"bpb_{step}": v.at(step).mean, f"bpb_{step}_sd": v.at(step).sd}
    cells |= {"final_bpb": v.final.mean, "final_bpb_sd": v.final.sd, "best_bpb_selected_on_dev": v.best.mean}
    numbers = [d.mean, d.low, d.high, d.p] if d is not None else [None] * 4
    cells |= dict(zip(("difference", "low_95", "high_95", "p"), numbers, strict=True))
    pairs = len(d.values) if d is not None else 0
    cells |= {"p_holm": row.p, "verdict": row.verdict, "resolvable": row.resolvable, "pairs": pairs}
    params = v.summaries("params")
    for key in ("non_embedding", "total"):
        cells[f"params_{key}"] = params[0][key] if params else None
    cells["non_embedding_ratio"] = ratio(v)
    for key in ("flops_per_token", "kv_bytes_per_token", "tokens_per_s", "peak_mb"):
        cells[key] = float(np.mean(v.summaries(key))) if v.summaries(key) else None
    cells |= {"seeds_finished": len(v.done), "seeds_planned": len(v.records)}
    return {key: None if isinstance(x, float) and np.isnan(x) else x for key, x in cells.items()}


def csv_text(study: Study) -> str:
    rows, out = csv_rows(study), io.StringIO()
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def plain(study: Study, width: int = 30) -> str:
    """For a terminal of 100 columns: the final numbers; the post's lines below tell the checkpoints."""
    parts = []
    for view in study.views:
        heads = ["variant", "final bpb", "difference [95%]", "verdict", "seeds"]
        rows = [
            [row.variant.label, spread(row.variant.final), interval(row.final), row.verdict or NONE, kept(row.variant)]
            for row in view.rows
        ]
        table = tabulate(rows, heads, tablefmt="simple", disable_numparse=True, maxcolwidths=[width, *[None] * 4])
        parts.append((f"{view.title}\n\n" if view.title else "") + table.replace(HARD, " "))
    return "\n\n".join(parts)
