"""Each notebook runs within its minute, and none carries outputs."""

import json
import subprocess
import sys

import pytest

from conftest import DEFAULTS, ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path):
    pytest.importorskip("nbmake", reason="executing notebooks needs the extra `notebooks`")
    line = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--nbmake",
        "--nbmake-timeout=60",
        "-p",
        "no:cacheprovider",
        str(path),
    ]
    done = subprocess.run(line, **{**DEFAULTS, "cwd": ROOT})
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_carries_no_outputs(path):
    cells = json.loads(path.read_text())["cells"]
    assert cells and not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
