"""What is committed in results/ and shown in the README is what the committed records say."""

import shutil

import pytest

from analysis import report, runs
from conftest import ROOT

TABLES = sorted(p for p in (ROOT / "results").rglob("*") if p.suffix in (".md", ".csv", ".tex", ".jsonl"))


def test_tables_and_readme_are_rebuilt_byte_for_byte_from_the_records(tmp_path):
    shutil.copytree(ROOT / "results", tmp_path / "results")
    shutil.copy(ROOT / "README.md", tmp_path)
    places = {"--runs": "none", "--results": "results", "--readme": "README.md"}
    assert report.main([word for flag, name in places.items() for word in (flag, str(tmp_path / name))]) == 0
    for path in [*TABLES, ROOT / "README.md"]:
        assert (tmp_path / path.relative_to(ROOT)).read_bytes() == path.read_bytes(), path
    for path in (tmp_path / "results").rglob("*.png"):
        assert path.stat().st_size > 10_000 and path.read_bytes()[:4] == b"\x89PNG"


RECORDS = [p for p in TABLES if p.name == "records.jsonl"]


@pytest.fixture(scope="module")
def clean():
    """(commit, code) of the runs from a clean tree. A sweep's own results once made the next one's tree dirty."""
    found = [record["provenance"] for path in RECORDS for record in runs.load(path)]
    return {(p["commit"], p["code_sha256"]) for p in found if p["dirty"] is False}


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.parent.name)
def test_committed_runs_come_from_the_code_of_their_commit_and_name_no_machine(path, clean):
    for record in runs.load(path):
        assert record["state"] == "finished"
        assert (record["provenance"]["commit"], record["provenance"]["code_sha256"]) in clean
    assert str(ROOT) not in path.read_text()
