"""What is measured beside the sweeps, through the real command at a small size."""

import json
import subprocess
import sys

import pytest

from conftest import DEFAULTS, ROOT


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", *arguments], **{**DEFAULTS, "cwd": ROOT, **options})


def test_gradients_of_every_layer_and_a_last_layer_that_depth_does_not_calm_under_post_norm(tmp_path):
    asked = ["--depths", "2,16", "--seeds", "0", "--scale", "smoke", "--out", str(tmp_path)]
    said = run("experiments.gradients", *asked)
    assert said.returncode == 0, said.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert len(rows) == 2 * 4 * (2 + 16)  # starts, wirings, layers
    last = {
        (r["wiring"], r["depth"]): r["gradient"] for r in rows if r["layer"] == r["depth"] and r["start"] == "xavier"
    }
    falls = {wiring: last[wiring, 16] / last[wiring, 2] for wiring in ("prenorm", "postnorm")}
    assert falls["prenorm"] < 0.8 < falls["postnorm"]  # Xiong et al. 2020, section 3
    report = (tmp_path / "report.md").read_text()
    assert report in said.stdout and (tmp_path / "gradients.png").stat().st_size > 10_000


@pytest.mark.parametrize(("asked", "named"), [(["--depths", "2,x"], "--depths"), (["--depths", "0"], "n_layer")])
def test_a_wrong_number_is_one_line(asked, named, tmp_path):
    said = run("experiments.gradients", *asked, "--out", str(tmp_path / "out"))
    assert said.returncode == 2 and named in said.stderr.splitlines()[-1] and not (tmp_path / "out").exists()
