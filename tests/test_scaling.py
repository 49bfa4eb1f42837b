"""A law of one's own: made-up records of a known law give it back, and the report says what they cannot tell."""

import re

import numpy as np
import pytest

import records
from analysis import runs
from calculators import chinchilla
from calculators.laws import Law
from experiments.scaling import __main__ as scaling
from experiments.scaling import ladders
from test_calculators_cache import refused

TRUE = Law(E=1.2, A=40.0, B=900.0, alpha=0.35, beta=0.5)
SIZES = {24: 30_000, 48: 115_000, 96: 443_000, 144: 1_000_000}  # width -> parameters without the tables
SYMBOLS = 1024  # a step


def ladder(path, text="canterbury", noise=0.002, widths=SIZES, lengths=(200, 400, 800, 1600), seeds=(0, 1)):
    """Records of the sweep on one text, written where it leaves them."""
    draw = np.random.default_rng(5)
    made = []
    for width in widths:
        for steps in lengths:
            for seed in seeds:
                N, D = SIZES[width], steps * SYMBOLS
                loss = TRUE.loss(N, D) * np.exp(noise * draw.standard_normal())
                axes = {"model.d_model": width, "train.steps": steps}
                run = records.record("baseline", seed, loss, draw, (steps,), name=path.name, axes=axes)
                run["text"] = text
                run["config"] |= {**axes, "train.batch_size": 8, "model.context": 128, "model.n_layer": 4}
                run["summary"]["params"] = {"non_embedding": N, "total": N + 90 * width, "active": N + 90 * width}
                run["summary"]["passes"] = D / 1_070_000
                made.append(run)
    path.mkdir(parents=True)
    runs.write(made, path / "records.jsonl")
    return made


def call(tmp_path, *more: str) -> int:
    places = ["--results", str(tmp_path), "--out", str(tmp_path / "out")]
    return scaling.main([*places, "--bootstrap", "20", *more])


def test_the_law_behind_the_records_comes_back_and_the_points_can_be_fitted_elsewhere(tmp_path, capsys):
    made = ladder(tmp_path / "cpu/scaling")
    ladder(tmp_path / "cpu/scaling-stdlib", "stdlib")
    assert call(tmp_path) == 0
    said = capsys.readouterr().out
    assert said == (tmp_path / "out/report.md").read_text()
    for name in ("alpha", "beta"):
        row = next(line for line in said.splitlines() if re.match(rf"\| {name} +\|", line))
        value, low, high = map(float, re.findall(r"[\d.]+", row)[:3])
        assert value == pytest.approx(getattr(TRUE, name), abs=0.06) and low <= value <= high and low < high
    assert "1.53 times" in said and "stdlib: range" in said
    points = ladders.fitting.read(tmp_path / "out/points-canterbury.csv")
    assert points.loss.tolist() == [run["summary"]["final_bpb"] for run in made]
    assert points.D.max() == 1600 * SYMBOLS and set(points.N) == set(SIZES.values())
    assert chinchilla.main(["fit", str(tmp_path / "out/points-canterbury.csv"), "--bootstrap", "2"]) == 0
    for kind in ("png", "svg"):
        assert (tmp_path / f"out/scaling.{kind}").stat().st_size > 10_000


def test_the_report_says_what_is_missing_and_what_was_tried_otherwise(tmp_path, capsys):
    made = ladder(tmp_path / "cpu/scaling")
    lost = made[3] | {"state": "failed", "reason": "out of memory"}
    runs.write([*made[:3], lost, *made[4:]], tmp_path / "cpu/scaling/records.jsonl")
    assert call(tmp_path) == 0
    said = capsys.readouterr().out
    assert "not finished" in said and "out of memory" in said and "31 runs" in said
    row = next(line for line in said.splitlines() if "without runs that repeat the text" in line)
    assert row.split("|")[2].strip() == "23"  # 8 of the longest left out, one lost
    assert "the most compute here, 2.0 times the next" in said


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (None, "make sweep S=scaling SCALE=cpu"),
        ({"widths": (24, 48)}, "sizes: 2, at least 3"),
        ({"lengths": (200, 800)}, "lengths: 2, at least 3"),
    ],
)
def test_records_that_say_too_little_are_one_line_and_nothing_is_written(shape, words, tmp_path, capsys):
    if shape:
        ladder(tmp_path / "cpu/scaling", **shape)
    places = ("--results", tmp_path, "--out", tmp_path / "out")
    assert words in refused(capsys, scaling.main, *places)
    assert not (tmp_path / "out").exists()
