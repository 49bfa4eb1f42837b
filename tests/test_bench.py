"""The bench through its real command, and the count that its shares rest on."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench import many, matrix, tables
from conftest import ROOT


def bench(*arguments, **variables):
    return subprocess.run(
        [sys.executable, "-m", "bench", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_quick_bench_writes_every_contender_and_the_same_tables_in_words(tmp_path):
    done = bench("--quick", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())
    assert {row["contender"] for row in found["speed"]} > {"ours, baseline block"}
    assert {(row["norm"], row["how"], row["pass"]) for row in found["norms"]}
    assert {row["axis"] for row in found["growth"]} == {"layers"} and len(found["share"]["sweeps"]) == 2
    numbers = [rate for row in found["speed"] for its in row["rounds"] for rate in its.values()]
    numbers += [time for row in found["norms"] for time in row["rounds_us"]]
    numbers += [time for row in found["growth"] for time in [*row["rounds_ms"], row["peak_mb"]]]
    assert all(math.isfinite(number) and number > 0 for number in numbers)
    text = path.with_suffix(".md").read_text()
    assert text == tables.markdown(found) and text in done.stdout
    assert all(f"| {row['contender']} " in text for row in found["speed"])
    assert path.with_suffix(".svg").stat().st_size and path.with_suffix(".png").stat().st_size
    assert str(ROOT) not in path.read_text()


def test_a_wrong_peer_is_one_line(tmp_path):
    done = bench("--peer", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and str(tmp_path) in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("shape", [(3, 4, 5), (4096, 128, 512)])
def test_flops_of_a_product_are_those_that_torch_counts(shape):
    rows, inner, columns = shape
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        torch.ones(rows, inner) @ torch.ones(inner, columns)
    assert matrix.flops(*shape) == counter.get_total_flops()


def test_many_runs_are_measured_from_a_plan_to_the_tables(tmp_path):
    for name in ("results", "driver"):
        (tmp_path / name).mkdir()
    found = many.results(20, tmp_path / "results", sweeps=1)
    assert (tmp_path / "results/results/cpu/sweep0/report.md").exists()
    assert found["folders"]["files"] == 20 * 7 + 1 and found["records"]["files"] == 1
    driven = many.driver(10, tmp_path / "driver")
    assert driven["missing"] == 10 and len(list((tmp_path / "driver").rglob("config.yaml"))) == 10
