"""A study's tables as Markdown, CSV, LaTeX and plain text. The same study gives the same bytes."""

import csv
import io
import re

import numpy as np
from tabulate import tabulate

from analysis import published, tables
from analysis.notes import remedy
from analysis.published import Check
from analysis.study import Row, Study, View
from analysis.tables import Table
from analysis.words import DASH, HARD, MINUS, NONE, TIMES, interval, show_spread

MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_[]|~<>$#"} | {"&": "&amp;"})
LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}"}
    | {">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", MINUS: "$-$", TIMES: r"$\times$", HARD: "~"}
    | {NONE: "---", DASH: "--"}
)
TYPED = ("replaces", "paper", "matched?", "text")  # columns in which users' own words stand
WORDS = ("said of it", "sweep", *TYPED, "verdict", "because", "the post")  # columns that are read, not compared


def markdown_table(table: Table) -> str:
    heads, rows = table
    typed = [n == 0 or head in TYPED for n, head in enumerate(heads)]
    cells = [[cell.translate(MARKDOWN) if raw else cell for cell, raw in zip(row, typed, strict=True)] for row in rows]
    align = ["left" if n == 0 or head in WORDS else "right" for n, head in enumerate(heads)]
    return tabulate(cells, heads, tablefmt="pipe", disable_numparse=True, colalign=align)


def main_markdown(study: Study) -> str:
    """The main table of each view, and their caption."""
    parts = []
    for view in study.views:
        parts += [f"**{view.title}**"] * bool(view.title) + [markdown_table(tables.main_table(view, study))]
    return "\n\n".join([*parts, tables.caption(study).translate(MARKDOWN)])


def markdown(study: Study, checks: list[Check], title: str = "") -> str:
    """All of a sweep's tables with what must be said below them."""
    parts = [main_markdown(study)]
    if study.grid:
        parts.append(markdown_table(tables.grid_table(study)))
    below = [*(f"Not finished, so in no mean: {gap}." for gap in study.gaps)]
    below += [remedy(study.scale, study.sweep)] * bool(below) + study.notes
    below += [*tables.anchors(study), *tables.made(study)]
    parts.append("\n".join(f"- {note.translate(MARKDOWN)}" for note in below))
    if swaps := tables.swaps_table([study]):
        parts += ["#### The swaps", markdown_table(swaps)]
    cost = tables.cost_caption(study).translate(MARKDOWN)
    parts += ["#### What it cost", markdown_table(tables.cost_table(study.views[-1])), cost]
    lines = "\n".join(tables.post_lines(study))
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", lines)), 3)
    parts += ["#### Run by run", f"{fence}text\n{lines}\n{fence}"]
    if checks:
        words = published.caption(checks, title)
        parts += ["#### Beside the post's numbers", markdown_table(published.table(checks)), words]
    return "\n\n".join(part for part in parts if part) + "\n"


def latex(study: Study) -> str:
    """Tables for a paper; needs the package booktabs."""
    titled = [(view, f"{view.title}. " if view.title else "") for view in study.views]
    found = [(tables.main_table(view, study), title + tables.caption(study)) for view, title in titled]
    found.append((tables.cost_table(study.views[-1]), f"What it cost. {tables.cost_caption(study)}"))
    return "\n".join(latex_table(table, words) for table, words in found)


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
    cells["non_embedding_ratio"] = tables.ratio(v)
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


def plain_text(study: Study, width: int = 30) -> str:
    """For a terminal of 100 columns: the final numbers; the post's lines below tell the checkpoints."""
    parts = []
    for view in study.views:
        heads = ["variant", "final bpb", "difference [95%]", "verdict", "seeds"]
        rows = [
            [
                row.variant.label,
                show_spread(row.variant.final),
                interval(row.final),
                row.verdict or NONE,
                tables.kept(row.variant),
            ]
            for row in view.rows
        ]
        table = tabulate(rows, heads, tablefmt="simple", disable_numparse=True, maxcolwidths=[width, *[None] * 4])
        parts.append((f"{view.title}\n\n" if view.title else "") + table.replace(HARD, " "))
    return "\n\n".join(parts)
