"""From runs/ to results/: records, tables, figures and the words around them. Computes nothing itself.

python -m analysis.report [--runs runs] [--results results] [--only scale/sweep] [--readme README.md]
"""

import argparse
import os
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from analysis import earlier, figures, formats, notes, published, runs, tables
from analysis.study import Study, study
from analysis.words import NONE, interval
from config import UserError
from storage import files

START, END = "<!-- results:start -->", "<!-- results:end -->"
FRONT = Path("cpu", "blog")  # the sweep that the project's README shows
MOST_LINES = 60  # runs that the terminal shows line by line


@dataclass(frozen=True)
class Report:
    text: str  # for the terminal
    gaps: list[str]  # planned runs without a result, by name


def build(runs_dir: Path, results_dir: Path, scale: str, sweep: str) -> Report:
    """Gathers one sweep and rebuilds its records, tables and figures in <results_dir>/<scale>/<sweep>.

    Raises UserError where there is neither a run nor a committed record.
    """
    folder = Path(results_dir, scale, sweep)
    words, passed_over = renew(Path(runs_dir, scale, sweep), folder / "records.jsonl")
    found, source = study(runs.load(folder / "records.jsonl")), published.load()
    checks = published.checks(found, source)
    made = figures.draw(found, folder)
    write_tables(found, folder, formats.markdown(found, checks, source["post"]["title"]), made)
    gaps = [*found.gaps, *passed_over]
    return Report(terminal(found, checks, gaps, words, folder), gaps)


def renew(home: Path, path: Path) -> tuple[list[str], list[str]]:
    """Writes the records of the runs in `home`, without losing what was there: see `earlier.merge`.

    Returns what to say about it, and the gaps among runs whose records were kept.
    """
    gathered = runs.gather(home)
    if not gathered and not path.exists():
        raise UserError(f"{home}: no runs, and no records in {path.parent}")
    if not gathered:
        return [], []
    before, word = earlier.committed(path)
    records, kept = earlier.merge(runs.load(path) if path.exists() else [], gathered)
    runs.write(records, path)
    lines = earlier.beside(before, records, word)
    words = [f"Beside the records {word}:", *(f"  {line}" for line in lines)] if lines else []
    names = {runs.key_of(record) for record in kept}
    gaps = [record for record in gathered if record["state"] != "finished" and runs.key_of(record) in names]
    gaps = [f"{runs.name_of(record)} {notes.told(record)}; its earlier record is shown" for record in gaps]
    return [*filter(None, [earlier.kept_words(kept)]), *words], gaps


def write_tables(found: Study, folder: Path, markdown: str, made: list[Path]) -> None:
    pictures = "\n\n".join(f"![{figures.FIGURES[png.stem][1]}]({png.name})" for png in made)
    title = f"# {found.scale}/{found.sweep}".translate(formats.MARKDOWN).replace("\\#", "#", 1)
    for name, text in (
        ("table.md", markdown),
        ("table.csv", formats.csv_text(found)),
        ("table.tex", formats.latex(found)),
        ("report.md", "\n\n".join(part for part in (title, pictures, markdown) if part)),
    ):
        files.save(folder / name, text.encode())


def terminal(found: Study, checks: list, gaps: list[str], words: list[str], folder: Path) -> str:
    """What a person reads at the end of a sweep; the table fits 100 columns."""
    title = f"{found.scale}/{found.sweep}: bits per byte of the dev set, "
    title += f"mean ± sd (ddof 1) over the finished seeds, {tables.seeds(found)}"
    parts = [title, formats.plain_text(found)]
    lines = tables.post_lines(found)
    parts.append("\n".join(lines) if len(lines) <= MOST_LINES else f"{len(lines)} runs, one by one in report.md.")
    parts.append("\n".join([*found.notes, *tables.anchors(found)]))
    if checks:
        parts.append("\n".join(["Beside the post's numbers:", *(f"  {line}" for line in published.lines(checks))]))
    lines = [f"not finished: {gap}" for gap in gaps] + [notes.remedy(found.scale, found.sweep)] * bool(gaps)
    parts += ["\n".join(words), "\n".join(lines)]
    parts.append(f"Tables, figures and report.md: {folder}")
    return "\n\n".join(part for part in parts if part)


def sweeps(runs_dir: Path, results_dir: Path) -> list[tuple[str, str]]:
    """(scale, sweep) of all that has run folders, a plan or records."""
    homes = {path.parent for path in runs_dir.glob("[!.]*/[!.]*/plan.json")}
    homes |= {path.parents[1] for path in runs_dir.glob("[!.]*/[!.]*/[!.]*/seed*") if path.is_dir()}
    homes |= {path.parent for path in results_dir.glob("*/*/records.jsonl")}
    return sorted({(home.parent.name, home.name) for home in homes})


def write_index(results_dir: Path) -> None:
    """results/README.md: one line a swap of each sweep, and what each swap is."""
    rows, studies, said = [], [], published.sayings()
    for path in sorted(results_dir.glob("*/*/records.jsonl")):
        found = study(runs.load(path))
        studies.append(found)
        name = f"{found.scale}/{found.sweep}".translate(formats.MARKDOWN)
        link = f"[{name}]({path.parent.relative_to(results_dir).as_posix()}/report.md)"
        for row in found.views[-1].swaps:
            cells = [row.variant.label, interval(row.final), row.verdict, said.get(row.variant.swap, "")]
            last = f"{found.steps[-1]:,}" if found.steps else NONE
            rows.append([*cells, tables.kept(row.variant), row.variant.records[0]["text"], last, link])
    heads = ["swap", "difference [95%]", "verdict", "said of it", "seeds", "text", "steps", "sweep"]
    parts = [
        "# Results",
        "Every swap of every sweep: swap minus baseline in final bits per byte, paired by seed, with its 95% t "
        "interval. Below zero the swap is better. The verdict is Holm-corrected within its sweep. What is said of a "
        "swap is from the documents that the project starts from, most of it about models that are far larger.",
        formats.markdown_table((heads, rows)),
    ]
    if swaps := tables.swaps_table(studies):
        parts += ["## The swaps", formats.markdown_table(swaps)]
    if besides := sorted(results_dir.glob("*/*.md")):
        parts += ["## Besides the sweeps", "\n".join(besides_line(path, results_dir) for path in besides)]
    files.save(results_dir / "README.md", ("\n\n".join(parts) + "\n").encode())


def besides_line(path: Path, results_dir: Path) -> str:
    """A link to what another command measured, in the words of its first line."""
    title, _, _ = path.read_text().partition("\n")
    return f"- [{title.lstrip('# ')}]({path.relative_to(results_dir).as_posix()})"


def refresh(readme: Path, results_dir: Path) -> None:
    """Rewrites what stands between the two markers in the README, where the records are there.

    Raises UserError: no such file, no markers, not to be read.
    """
    folder = results_dir / FRONT
    if not (folder / "records.jsonl").exists():
        return
    try:
        text = readme.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{readme}: cannot be read, so it does not show the results: {files.first_line(error)}"
        ) from None
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise UserError(f"{readme}: left as it is; a line {START} and then one {END} mark where the results go")
    found = study(runs.load(folder / "records.jsonl"))
    place = Path(os.path.relpath(folder, readme.parent)).as_posix()
    parts = [formats.main_markdown(found)]
    parts += [
        f"![{figures.FIGURES[name][1]}]({place}/{name}.png)"
        for name in ("forest", "curves")
        if (folder / f"{name}.png").exists()
    ]
    parts.append(f"More, run by run and beside the post's numbers: [{place}/report.md]({place}/report.md).")
    new = f"{before}{START}\n\n" + "\n\n".join(parts) + f"\n\n{END}{after}"
    if new != text:
        files.save(readme, new.encode())


def choose(runs_dir: Path, results_dir: Path, only: str | None) -> list[tuple[str, str]]:
    """The sweeps to report. Raises UserError where there are none, or not the one that was asked for."""
    found = sweeps(runs_dir, results_dir)
    if not found:
        raise UserError(
            f"nothing to report: no runs in {runs_dir}, no records in {results_dir}; `make sweep` makes some"
        )
    if only and only not in ["/".join(pair) for pair in found]:
        raise UserError(f"--only {only}: not there. Allowed: {', '.join('/'.join(pair) for pair in found)}")
    return [pair for pair in found if only in (None, "/".join(pair))]


def build_all(runs_dir: Path, results_dir: Path, chosen: list[tuple[str, str]]) -> list[Future]:
    """What `build` returns or raises for each sweep. Side by side: figures take longer than all the rest."""
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(chosen))) as pool:
        return [pool.submit(build, runs_dir, results_dir, *one) for one in chosen]


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 1 where a planned run has no result, 2 for a mistake of the person who typed it."""
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Rebuild results/ from runs/.")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="run folders")
    parser.add_argument("--results", type=Path, default=Path("results"), help="records, tables and figures")
    parser.add_argument("--only", metavar="SCALE/SWEEP", help="one sweep alone")
    parser.add_argument("--readme", type=Path, default=Path("README.md"), help="file with the results markers")
    options = parser.parse_args(arguments)
    status, gaps = 0, []
    try:
        chosen = choose(options.runs, options.results, options.only)
    except UserError as error:
        return blame(error)
    for (scale, sweep), building in zip(chosen, build_all(options.runs, options.results, chosen), strict=True):
        try:
            report = building.result()
        except UserError as error:  # the other sweeps still get their tables
            status = blame(error)
            continue
        print(report.text if len(chosen) == 1 else f"{options.results / scale / sweep / 'report.md'}")
        gaps += [f"not finished: {scale}/{sweep}/{gap}" for gap in report.gaps] if len(chosen) > 1 else []
        status = max(status, 1 if report.gaps else 0)
    print("\n".join(gaps), end="\n" * bool(gaps))
    try:
        write_index(options.results)
    except UserError as error:
        status = blame(error)
    try:
        refresh(options.readme, options.results)
    except UserError as error:  # the results are all there: only a word, no failure
        blame(error)
    return status


def blame(error: UserError) -> int:
    print(f"oneswap: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
