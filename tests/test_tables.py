"""Run folders to records, records to tables and reports: nothing lost, nothing made up, the same bytes again."""

import csv
import gc
import io
import json
import subprocess
from pathlib import Path

import pytest

from analysis import earlier, figures, formats, published, report, runs, tables
from analysis.study import study
from analysis.words import TIMES
from config import UserError
from records import FINALS, altered, folders, sweep
from storage import files, rundir

SMALL = {"baseline": 2.55, "gelu": 2.74}
FILES = ("config.yaml", "provenance.json", "status.json", "summary.json", "metrics.jsonl")


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """statsmodels collects garbage in each call: slow, unless what is there now is passed over."""
    gc.freeze()
    yield
    gc.unfreeze()


def markdown(records) -> str:
    return formats.markdown(study(records), [])


def test_gathered_records_are_the_runs_numbers_in_full(tmp_path):
    records = sweep()
    gathered = runs.gather(folders(records, tmp_path))
    assert [(r["variant"], r["seed"]) for r in gathered] == [(r["variant"], r["seed"]) for r in records]
    for mine, truth in zip(gathered, records, strict=True):
        for key in ("scale", "sweep", "swap", "state", "axes", "about", "evals", "curve", "summary", "provenance"):
            assert mine[key] == truth[key]
        assert truth["config"].items() <= mine["config"].items() and not any(
            k.startswith("run") for k in mine["config"]
        )


def test_records_survive_the_file_and_give_the_same_bytes(tmp_path):
    gathered = runs.gather(folders(sweep(), tmp_path))
    runs.write(gathered, tmp_path / "a.jsonl")
    loaded = runs.load(tmp_path / "a.jsonl")
    runs.write(loaded, tmp_path / "b.jsonl")
    assert loaded == gathered
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("name", ["no", "on", "NA", "null", "12e34", "1e-3", "0x10"])
def test_keys_stay_strings(tmp_path, name):
    home = folders(sweep({"baseline": 2.5, name: 2.7}), tmp_path)
    runs.write(runs.gather(home), tmp_path / "records.jsonl")
    found = study(runs.load(tmp_path / "records.jsonl"))
    assert [v.name for v in found.variants] == ["baseline", name]
    row = next(row for row in csv.DictReader(io.StringIO(formats.csv_text(found))) if row["variant"] == name)
    assert row["label"] == name and row["verdict"] == "worse" and row["seeds_finished"] == "3"
    assert f"| {name} " in formats.markdown(found, [])


def test_rates_in_names_become_numbers_and_other_values_text(tmp_path):
    home = folders(sweep(SMALL, **{"train.lr": 3e-4}), tmp_path)
    plan = json.loads((home / "plan.json").read_text())
    plan["runs"] += ["gelu,train.lr=1e-3,text.name=no/seed0"]
    (home / "plan.json").write_text(json.dumps(plan))
    gathered = runs.gather(home)
    assert gathered[0]["axes"] == {"train.lr": 3e-4}
    assert gathered[-1]["axes"] == {"train.lr": 1e-3, "text.name": "no"} and gathered[-1]["swap"] == "gelu"


def test_planned_runs_are_the_denominator_and_unplanned_ones_are_not_lost(tmp_path):
    home = folders(sweep(SMALL), tmp_path)
    (home / "plan.json").write_text(json.dumps({"runs": [f"{v}/seed{s}" for v in SMALL for s in (0, 1, 2, 3)]}))
    for extra in ("gelu/seed10", "gelu/seed1.bak", ".hydra/seed0"):
        (home / extra).mkdir(parents=True)
    gathered = runs.gather(home)
    assert [f"{r['variant']}/seed{r['seed']}" for r in gathered if r["state"] != "finished"] == [
        "baseline/seed3",
        "gelu/seed3",
        "gelu/seed10",
    ]
    missing = gathered[3]
    assert (missing["state"], missing["reason"]) == ("missing", "no folder")
    assert missing["about"]["label"] == "SwiGLU + RMSNorm (baseline)"
    assert "3/4" in markdown(gathered) and "baseline/seed3 missing: no folder" in markdown(gathered)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"\x00\xff\xfe", b"[1, 2\n", b'{"a": \n', b"[1, 2]\n"])
def test_garbage_in_any_file_is_told_by_its_name_and_with_the_remedy(tmp_path, name, content):
    home = folders(sweep(SMALL), tmp_path)
    (home / "gelu/seed1" / name).write_bytes(content)
    hurt = runs.gather(home)[4]
    assert hurt["state"] == rundir.read(home / "gelu/seed1")["state"]  # what the engine says
    assert name in hurt["reason"] and hurt["reason"].endswith("remove the folder to run it again")
    found = study(runs.gather(home))
    assert name in " ".join(found.gaps + found.notes)
    assert found.views[0].rows[1].verdict == ("worse" if name == "metrics.jsonl" else "incomplete")


def test_a_finished_run_counts_by_its_summary_and_a_killed_one_is_interrupted(tmp_path):
    home = folders(sweep(SMALL), tmp_path)
    rows = (home / "gelu/seed0/metrics.jsonl").read_text().splitlines(keepends=True)
    (home / "gelu/seed0/metrics.jsonl").write_text("".join(rows[:-3]))
    (home / "gelu/seed1/metrics.jsonl").write_text("".join(rows[:20]) + '{"step": 2')
    (home / "gelu/seed1/status.json").write_text(json.dumps({"state": "running", "reason": ""}))
    (home / "gelu/seed1/summary.json").unlink()
    (home / "gelu/seed2/summary.json").unlink()
    found = runs.gather(home)[3:]
    assert [r["state"] for r in found] == ["finished", "interrupted", "interrupted"]
    assert [r["state"] for r in found] == [rundir.read(home / f"gelu/seed{s}")["state"] for s in range(3)]
    assert "metrics.jsonl lacks evaluations" in found[0]["reason"] and found[0]["evals"] == found[0]["summary"]["evals"]
    assert "killed" in found[1]["reason"] and found[1]["evals"][0] == [0, 6.6]


def test_frozen_but_never_started_and_a_damaged_plan(tmp_path):
    home = folders(sweep(SMALL), tmp_path)
    for name in FILES[1:]:
        (home / "gelu/seed2" / name).unlink()
    assert (runs.gather(home)[5]["state"], runs.gather(home)[5]["reason"]) == ("missing", "not started")
    (home / "plan.json").write_text('{"runs": ["gelu"]}')
    with pytest.raises(UserError, match=r"plan\.json: damaged"):
        runs.gather(home)


def test_nan_of_a_diverged_run_is_no_number(tmp_path):
    home = folders(altered(sweep(SMALL), "gelu/seed1", state="diverged", reason="loss is not finite"), tmp_path)
    with open(home / "gelu/seed1/metrics.jsonl", "a") as file:
        file.write('{"step": 810, "val_bpb": NaN}\n')
    record = runs.gather(home)[4]
    assert record["state"] == "diverged" and record["evals"][-1] == [810, None]
    assert "GELU MLP, 4D wide           s1: " in markdown(runs.gather(home))
    assert "(diverged: loss is not finite)" in markdown(runs.gather(home))


def test_a_finished_run_without_the_tables_numbers_is_damaged(tmp_path):
    home = folders(sweep(SMALL), tmp_path)
    summary = json.loads((home / "gelu/seed1/summary.json").read_text())
    summary["params"], summary["passes"] = {"total": 3}, None
    (home / "gelu/seed1/summary.json").write_text(json.dumps(summary))
    assert runs.gather(home)[4]["reason"] == (
        "summary.json lacks passes, params.non_embedding; remove the folder to run it again"
    )


def test_a_sweep_that_only_measured_its_start(tmp_path):
    records = sweep(SMALL)
    for r in records:
        r["evals"], r["curve"] = [[0, 6.6 + r["seed"] / 100]], []
        r["summary"]["final_bpb"] = r["evals"][0][1]
    folders(records, tmp_path / "runs")
    built = report.build(tmp_path / "runs", tmp_path / "results", "cpu", "blog")
    results = tmp_path / "results/cpu/blog"
    assert not built.gaps and [path.stem for path in results.glob("*.png")] == ["forest"]
    assert "6.610 ±\u00a00.010" in (results / "table.md").read_text()


def test_the_posts_line_to_the_letter():
    evals = {0: 6.6, 1000: 2.1471, 2000: 2.0529, 3000: 2.034, 4000: 2.027}
    line = "SwiGLU + RMSNorm (baseline) s0: 1000: 2.147 / 2000: 2.053 / 3000: 2.034 / 4000: 2.027  (61 passes)"
    assert tables.post_line("SwiGLU + RMSNorm (baseline) s0", evals, 61.04) == line
    assert tables.post_line("x s0", [[0, 6.6], [20, 4.0]], 1.53) == "x s0: 20: 4.000  (1.5 passes)"


def test_lines_stand_seed_by_seed_with_their_seeds_in_one_column():
    lines = tables.post_lines(study(sweep()))
    assert [line.index(" s0: ") for line in lines[:5]] == [27] * 5
    assert [line.split(":")[0][-2:] for line in lines] == ["s0"] * 5 + ["s1"] * 5 + ["s2"] * 5
    assert not any(" 0: " in line for line in lines)


def test_the_table_says_what_its_numbers_are():
    text = markdown(sweep())
    for word in ("ddof 1", "95% t interval", "n = 3 seeds", "Holm-corrected over 4", "weights, the batches", "dropout"):
        assert word in text
    for word in (
        "(selected on dev)",
        "gzip 3.215",
        "0.44M",
        "6.1M",
        "1.5\u00a0KiB",
        "412\u00a0MB",
        "26.0k",
        "stride 128",
    ):
        assert word in text


def test_what_is_not_matched_is_told():
    records = sweep(SMALL)
    for r in records[3:]:
        r["about"] |= {"matched": False, "reason": "wider on purpose"}
        r["summary"]["params"] = {"total": 600_000, "non_embedding": 523_014}
    text = markdown(records)
    assert f"no, 1.18{TIMES}" in text and "wider on purpose" in text


LABEL = r"a|b & c_d *e* <i>f</i> `g` $h$ 50% #1 \x {y} [z](u) ~w~ ^"


def test_labels_are_escaped():
    records = sweep(SMALL)
    for r in records[3:]:
        r["about"] |= {"label": f"{LABEL}\nnext\tline"}
    found = study(records)
    table = formats.markdown_table(tables.main_table(found.views[0], found)).splitlines()
    assert len(table) == 4 and "<i>" not in table[3].replace(r"\<i\>", "")
    assert table[3].replace(r"\|", "").count("|") == table[2].count("|")
    assert r"a\textbar{}b \& c\_d" in formats.latex(found) and r"50\% \#1 \textbackslash{}x \{y\}" in formats.latex(
        found
    )
    row = list(csv.DictReader(io.StringIO(formats.csv_text(found))))[1]
    assert row["label"] == f"{LABEL} next line"


def test_a_reason_from_elsewhere_commands_no_terminal_and_breaks_no_line():
    records = altered(sweep(SMALL), "gelu/seed1", state="failed", reason="no\x1b[2J\nspace\x07 <b>left</b>")
    found = study(records)
    assert found.gaps == ["gelu/seed1 failed: no [2J space <b>left</b>"]
    assert "\x1b" not in report.terminal(found, [], found.gaps, [], Path("here"))
    assert r"\<b\>left\</b\>" in markdown(records).partition("#### Run by run")[0]


def test_a_fence_that_a_label_cannot_close():
    records = sweep(SMALL)
    for r in records:
        r["about"] |= {"label": "````"}
    assert "`````text\n" in markdown(records)


def test_csv_holds_the_numbers_unrounded():
    records = sweep()
    row = list(csv.DictReader(io.StringIO(formats.csv_text(study(records)))))[1]
    finals = [r["summary"]["final_bpb"] for r in records if r["swap"] == "gelu"]
    assert float(row["final_bpb"]) == pytest.approx(sum(finals) / 3, rel=1e-15)
    assert float(row["p_holm"]) > float(row["p"]) > 0


def test_latex_tables_have_as_many_cells_as_columns():
    for table in formats.latex(study(sweep())).split(r"\end{tabular}")[:-1]:
        columns = table.split(r"\begin{tabular}{")[1].split("}")[0]
        body = [line for line in table.splitlines() if line.endswith(r" \\")]
        assert body and {line.count(" & ") for line in body} == {len(columns) - 1}


def test_without_a_baseline_there_are_no_difference_columns():
    text = markdown(sweep({"gelu": 2.7, "learned": 3.0}))
    assert "difference \\[" not in text and "[95%]" not in text and "no baseline" in text


def test_the_terminals_table_fits_100_columns():
    found = study(sweep({**FINALS, "a swap whose author had very much to say about it, and said it": 2.6}))
    assert max(map(len, formats.plain_text(found).splitlines())) <= 100


@pytest.fixture
def quick_figures(monkeypatch):
    """Drawing is tested elsewhere; here an empty file stands for each figure."""

    def draw(found, folder):
        for name in figures.FIGURES:
            files.save(folder / f"{name}.png", b"")
        return [folder / f"{name}.png" for name in figures.FIGURES]

    monkeypatch.setattr(report.figures, "draw", draw)


def read(folder) -> dict:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".png"}


def test_a_report_is_rebuilt_byte_for_byte_and_from_records_alone(tmp_path):
    folders(sweep(SMALL), tmp_path / "runs")
    built = report.build(tmp_path / "runs", tmp_path / "results", "cpu", "blog")
    place = tmp_path / "results/cpu/blog"
    assert not built.gaps and len(list(place.glob("*.png"))) == 3 and "GELU MLP, 4D wide" in built.text
    first = read(place)
    assert set(first) >= {"records.jsonl", "table.md", "table.csv", "table.tex", "report.md", "curves.svg"}
    report.build(tmp_path / "runs", tmp_path / "results", "cpu", "blog")
    assert read(place) == first
    report.build(tmp_path / "gone", tmp_path / "results", "cpu", "blog")
    assert read(place) == first


def test_finished_records_are_not_replaced_by_runs_that_have_not_finished(quick_figures, tmp_path):
    folders(sweep(SMALL), tmp_path / "runs")
    built = report.build(tmp_path / "runs", tmp_path / "results", "cpu", "blog")
    path = tmp_path / "results/cpu/blog/records.jsonl"
    before = path.read_bytes()
    for status in (tmp_path / "runs").rglob("status.json"):
        status.write_text(json.dumps({"state": "running"}))
    again = report.build(tmp_path / "runs", tmp_path / "results", "cpu", "blog")
    assert not built.gaps and path.read_bytes() == before
    assert again.gaps and "Kept from the records that were there" in again.text
    assert "gelu/seed0 interrupted" in again.text


def build(tmp_path, records):
    """The report of a sweep whose records lay there before, and the records that it leaves."""
    runs.write(records, tmp_path / "results/cpu/blog/records.jsonl")
    built = report.build(tmp_path / "runs", tmp_path / "results", "cpu", "blog")
    return built, runs.load(tmp_path / "results/cpu/blog/records.jsonl")


def test_one_new_run_replaces_one_record_and_keeps_the_others(quick_figures, tmp_path):
    old, new = sweep(SMALL), sweep(SMALL, draw=3)
    folders(new[4:5], tmp_path / "runs")
    built, left = build(tmp_path, old)
    assert [runs.key_of(r) for r in left] == [runs.key_of(r) for r in old]
    assert left[4]["evals"] == new[4]["evals"] and [r for n, r in enumerate(left) if n != 4] == old[:4] + old[5:]
    assert "Kept from the records that were there: baseline/seed0, baseline/seed1" in built.text and not built.gaps


def test_the_plan_is_the_union_with_the_baseline_first(tmp_path):
    old = sweep({"gelu": 2.7, "learned": 3.0})
    merged, kept = earlier.merge(old, sweep({"baseline": 2.5}, seeds=(0, 5)))
    assert [runs.name_of(r) for r in merged[:3]] == ["baseline/seed0", "baseline/seed5", "gelu/seed0"]
    assert merged[2:] == old == kept


def test_all_trained_again_replaces_all_even_where_a_seed_diverged():
    new = altered(sweep(SMALL, draw=3), "gelu/seed1", state="diverged")
    assert earlier.merge(sweep(SMALL), new) == (new, [])


def test_a_run_that_lost_its_folder_is_a_gap_though_its_record_is_kept(quick_figures, tmp_path):
    home = folders(sweep(SMALL), tmp_path / "runs")
    (home / "gelu/seed1/status.json").unlink()
    built, left = build(tmp_path, sweep(SMALL))
    assert left[4]["state"] == "finished" and built.gaps
    assert "not finished: gelu/seed1 interrupted" in built.text and "its earlier record is shown" in built.text


def test_a_gap_names_its_remedy_and_a_run_can_be_withdrawn(quick_figures, tmp_path):
    home = folders(sweep(SMALL), tmp_path / "runs")
    names = json.loads((home / "plan.json").read_text())["runs"]
    (home / "plan.json").write_text(json.dumps({"runs": [*names, "gelu/seed7"]}))
    built = report.build(tmp_path / "runs", tmp_path / "results", "cpu", "blog")
    assert built.gaps and "gelu/seed7 missing: no folder" in built.text
    assert "run the same command again" in built.text and "its entry from runs/cpu/blog/plan.json" in built.text
    (home / "plan.json").write_text(json.dumps({"runs": names}))
    assert report.build(tmp_path / "runs", tmp_path / "results", "cpu", "blog").gaps == []


def test_outside_git_nothing_is_called_committed(quick_figures, tmp_path):
    folders(sweep(SMALL, draw=9), tmp_path / "runs")
    built, _ = build(tmp_path, sweep(SMALL))
    assert "Beside the records before:" in built.text and "worse, as before" in built.text
    assert "committed" not in built.text


def test_captions_say_n_sd_and_ddof(quick_figures, tmp_path):
    folders(sweep(SMALL), tmp_path / "runs")
    title = report.build(tmp_path / "runs", tmp_path / "results", "cpu", "blog").text.splitlines()[0]
    cost = formats.latex(study(sweep(SMALL))).split(r"\caption")[2].split("\n")[0]
    for text in (title, cost):
        assert "n = 3" in text and "sd" in text.replace(r"$\pm$", "") and "ddof 1" in text


def test_what_a_swap_replaces_and_where_it_comes_from_is_shown(quick_figures, tmp_path):
    records = sweep(SMALL)
    for r in records[3:]:
        r["about"] |= {
            "replaces": "SwiGLU | 8/3 D",
            "paper": "arXiv:1606.08415",
            "matched": False,
            "reason": "on purpose",
        }
    folders(records, tmp_path / "runs")
    assert call(tmp_path) == 0
    for name in ("README.md", "cpu/blog/report.md"):
        text = (tmp_path / "results" / name).read_text()
        assert "SwiGLU \\| 8/3 D" in text and "arXiv:1606.08415" in text and "no: on purpose" in text


@pytest.mark.parametrize("variant", ["gelu", "gelu,text.path=/a b/c%2F", "x,train.lr=1e-05,name=.."])
def test_a_place_tells_its_variant(tmp_path, variant):
    place = rundir.place(tmp_path, variant, 3)
    assert place.parent.parent == tmp_path and rundir.variant_of(place) == variant


def test_a_new_sweep_is_set_beside_the_committed_one(quick_figures, tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    runs.write(sweep(SMALL), tmp_path / "results/cpu/blog/records.jsonl")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "results"]):
        subprocess.run([*git, *words], check=True)
    folders(sweep(SMALL, draw=9), tmp_path / "runs")
    for _ in range(2):  # the second time the file itself is no longer the committed one
        built = report.build(tmp_path / "runs", tmp_path / "results", "cpu", "blog")
        assert "GELU MLP, 4D wide: 2.7" in built.text and "worse, as committed" in built.text


def call(tmp_path, *words) -> int:
    places = ["--runs", "runs", "--results", "results", "--readme", "README.md"]
    return report.main([str(tmp_path / word) if word[0] != "-" else word for word in places] + list(words))


def test_the_command_names_gaps_and_what_is_not_there(quick_figures, tmp_path, capsys):
    assert call(tmp_path) == 2 and "nothing to report" in capsys.readouterr().err
    home = folders(sweep(SMALL), tmp_path / "runs")
    assert call(tmp_path) == 0
    assert call(tmp_path, "--only", "cpu/blgo") == 2 and "Allowed: cpu/blog" in capsys.readouterr().err
    (home / "gelu/seed1/summary.json").write_text("{")
    assert call(tmp_path) == 1
    told = capsys.readouterr().out
    assert "not finished: gelu/seed1 damaged: summary.json is damaged" in told and "earlier record is shown" in told
    (home / "plan.json").write_text("{")
    folders(sweep(SMALL, name="other"), tmp_path / "runs")
    assert call(tmp_path) == 2 and (tmp_path / "results/cpu/other/table.md").exists()


def test_index_and_readme(quick_figures, tmp_path, capsys):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- results:start -->\nold\n<!-- results:end -->\nafter\n")
    folders(sweep(SMALL), tmp_path / "runs")
    folders(sweep(SMALL, scale="smoke"), tmp_path / "runs")
    assert call(tmp_path) == 0
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("<!-- results:end -->\nafter\n") and "old" not in text
    assert "(results/cpu/blog/curves.png)" in text and "| GELU MLP, 4D wide" in text
    index = (tmp_path / "results/README.md").read_text()
    assert index.count("| GELU MLP, 4D wide") == 2 and "(smoke/blog/report.md)" in index
    line = next(line for line in index.splitlines() if line.startswith("| GELU"))
    assert published.sayings()["gelu"] in line
    report.refresh(readme, tmp_path / "results")
    assert readme.read_text() == text
    readme.write_text("no markers\n")
    assert call(tmp_path, "--only", "smoke/blog") == 0 and readme.read_text() == "no markers\n"
    assert "left as it is" in capsys.readouterr().err
    readme.unlink()
    with pytest.raises(UserError, match=r"README.md: cannot be read"):
        report.refresh(readme, tmp_path / "results")


def test_a_file_that_is_no_record_is_named_with_its_line(tmp_path):
    path = tmp_path / "records.jsonl"
    runs.write(sweep(SMALL)[:1], path)
    path.write_text(path.read_text() + '{"half": ')
    with pytest.raises(UserError, match="line 2"):
        runs.load(path)


def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        files.save(tmp_path / "file" / "table.md", b"x")
