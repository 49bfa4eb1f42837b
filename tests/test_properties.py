"""Whatever is thrown at it: knobs, bytes and damage are used, or refused in one line."""

import shutil
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

import cli
import gpt
import parts.experts
import parts.norms
import parts.positions
from config import Config, Kind, UserError, keys
from conftest import places
from engine.job import DIVERGED, OK, attempt
from engine.plan import Freezer
from storage import rundir, seal
from storage.runlog import RunLog
from test_runlog import HERE, SUMMARY, a_config, finished, interrupted, weights
from test_runlog import train as go_on
from training import optim

# The same examples each time, and few of them: a property test is one test of the suite, not a search.
FEW = settings(
    max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)  # fmt: skip
MANY = settings(FEW, max_examples=120)
UNREAD = "nothing in this model reads it"
DICTS = [
    table
    for module in (gpt, parts.experts, parts.norms, parts.positions, optim)
    for table in vars(module).values()
    if isinstance(table, dict) and table and all(isinstance(name, str) for name in table)
]
SIZES = {
    "model.n_layer": (1, 2, 3),
    "model.n_head": (1, 2, 4),
    "model.d_model": (6, 24, 48),
    "model.context": (4, 16, 32),
}
WORDS = {  # knobs whose values are made of names
    "model.windows": ("L", "S", "SL", "SSSSSL", "LX", ""),
    "model.attention": (*sorted(gpt.ATTENTIONS), "delta,mha", "ssm,ssm,mla", "mha,", "nonsense"),
}
NUMBERS = {
    int: (-1, 0, 1, 2, 3, 7, 64),
    float: (-1.0, 0.0, 1e-8, 1e-3, 0.5, 0.999, 1.0, 2.0, 30.0, float("inf"), float("nan")),
}
SECTIONS = ("model", "train", "eval")


def field_of(key: str):
    section, name = key.split(".")
    (found,) = [f for f in fields(getattr(Config(), section)) if f.name == name]
    return found, getattr(getattr(Config(), section), name)


def values(key: str) -> tuple | None:
    """What is tried for a knob: names from the dict that has its default, numbers at and beyond their bounds."""
    found, default = field_of(key)
    kind = next((k for k in (found.type, *get_args(found.type)) if k in NUMBERS), None)
    if key in SIZES:
        return SIZES[key]
    if key in WORDS:
        return WORDS[key]
    if isinstance(default, str):
        names = {name for table in DICTS if default in table for name in table}
        assert names, f"{key}={default}: no dict has this name"
        return (*sorted(names), "nonsense")
    if isinstance(default, Enum):
        return tuple(type(default).__members__)
    if isinstance(default, bool):
        return (True, False)
    if isinstance(default, list):
        return ([], [0], [1], [1, 2], [-1])
    return NUMBERS[kind] + ((None,) if default is None else ())


KNOBS = {key: values(key) for key in keys(Config()) if key.split(".")[0] in SECTIONS and key != "train.steps"}
EDGES = (-1, 0, 7, 64, -1.0, 0.0, 1e-8, 1.0, 30.0, float("inf"), float("nan"), "nonsense", "LX", "", "mha,", [-1])
SOUND = {key: [value for value in values if repr(value) not in map(repr, EDGES)] for key, values in KNOBS.items()}


def turned(knobs: dict, most: int):
    chosen = st.lists(st.sampled_from(sorted(knobs)), max_size=most, unique=True)
    return chosen.flatmap(lambda keys: st.fixed_dictionaries({key: st.sampled_from(knobs[key]) for key in keys}))


@pytest.fixture(scope="module")
def composed(tmp_path_factory, text_file):
    """What Hydra composes at smoke scale with two steps; a copy of it takes each example's knobs."""
    root = tmp_path_factory.mktemp("properties")
    return cli.compose([*places(root, text_file), "train.steps=2", "train.checkpoints=[]", "about.matched=false"])


def fate(composed, knobs: dict) -> str:
    """ "trained", or the one line with which it was refused before any step."""
    config = composed.copy()
    folder = Path(config.runs_dir)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        for key, value in knobs.items():
            OmegaConf.update(config, key, value)
        job = Freezer().freeze(config)
    except cli.MISTAKES as error:
        assert not folder.exists()
        return cli.one_line(error)
    code = attempt([(job.config, job.folder, lambda row: None)])
    rows = rundir.read_rows(job.folder)
    assert code in (OK, DIVERGED), rundir.read(job.folder)["reason"]
    assert code == DIVERGED or rows[-1]["step"] == 2
    return "trained"


@MANY
@given(knobs=st.one_of(turned(SOUND, 10), turned(SOUND, 10), turned(KNOBS, 4)))
def test_any_combination_of_knobs_trains_or_is_refused_in_one_line(composed, knobs):
    said = fate(composed, knobs)
    while UNREAD in said:  # leave it out, then, and see what the others do
        del knobs[said.partition("=")[0]]
        said = fate(composed, knobs)

    assert said and "\n" not in said and "Traceback" not in said


TEXTS = st.one_of(
    st.binary(max_size=3000),
    st.text(max_size=1500).map(str.encode),
    st.builds(lambda part, n: part * n, st.binary(min_size=1, max_size=40), st.integers(1, 200)),
    st.builds(lambda part, n: part.encode() * n, st.text(min_size=1, max_size=20), st.integers(1, 200)),
)


@FEW
@given(data=TEXTS, kind=st.sampled_from(Kind), vocab=st.sampled_from([256, 260, 300]), dev=st.sampled_from([0.1, 0.5]))
def test_any_bytes_train_or_are_refused_in_one_line(composed, tmp_path_factory, data, kind, vocab, dev):
    path = tmp_path_factory.mktemp("bytes") / "any.txt"
    path.write_bytes(data)
    knobs = {"text.path": str(path), "text.kind": kind.name, "text.bpe_vocab": vocab, "text.dev_fraction": dev}
    said = fate(composed, {**knobs, "model.context": 16})
    assert said and "\n" not in said


# --- damage ----------------------------------------------------------------------------------------------------------

HURT = st.one_of(
    st.tuples(st.just("cut"), st.floats(0, 0.999)),
    st.tuples(st.just("bit"), st.floats(0, 0.999)),
    st.tuples(st.just("garbage"), st.binary(max_size=60)),
    st.tuples(st.just("append"), st.binary(min_size=1, max_size=20)),
    st.tuples(st.just("foreign"), st.none()),
    st.tuples(st.just("gone"), st.none()),
)


def hurt(path: Path, how: str, by, other: Path) -> bool:
    """Damages a file; whether it is now another."""
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
        return True
    flipped = bytearray(data)
    if how == "bit":
        flipped[int(by * len(data))] ^= 1 << int(by * 1000) % 8
    new = {
        "cut": lambda: data[: int(by * len(data))],
        "bit": lambda: bytes(flipped),
        "garbage": lambda: by,
        "append": lambda: data + by,
        "foreign": lambda: (other / path.name).read_bytes(),
    }[how]()
    path.write_bytes(new)
    return new != data


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> tuple[Path, Path]:
    """A finished run, and another of the same length."""
    mine, other = tmp_path_factory.mktemp("mine"), tmp_path_factory.mktemp("other")
    finished(mine)
    foreign = a_config(seed=4)
    with RunLog(other, foreign) as log:
        log.begin(HERE | {"threads": 2})
        go_on(log, 40)
        log.finish(SUMMARY | {"final_bpb": 2.25}, weights(41))
    return mine, other


@FEW
@given(name=st.sampled_from([*seal.SEALED, "summary.json", seal.SEAL]), damage=HURT)
def test_any_damage_to_a_finished_run_is_noticed(ended, tmp_path_factory, name, damage):
    mine, other = ended
    folder = tmp_path_factory.mktemp("hurt") / "run"
    shutil.copytree(mine, folder)
    if not hurt(folder / name, *damage, other):
        return
    try:
        noticed = rundir.read(folder)["state"] != "finished" or seal.broken(folder, thorough=True)
    except ValueError:
        noticed = True
    if not noticed and name in seal.LARGE:
        assert damage[0] == "gone"  # thrown away to save room
    elif not noticed:  # the seal alone is gone, or says the same in other bytes
        assert name == seal.SEAL and seal.load(folder / name) in ({}, seal.load(mine / name))


def resumed(folder: Path) -> tuple[list, dict]:
    """The rows and the provenance of an interrupted run that has gone on to its end."""
    with RunLog(folder, a_config()) as log:
        log.begin(HERE)
        point = log.restore()
        go_on(log, 40, first=point[0] + 5 if point else 0)
        log.finish(SUMMARY, weights(40))
    return rundir.read_rows(folder), rundir.load(folder / "provenance.json")


INTERRUPTED = ("config.yaml", "provenance.json", "metrics.jsonl", "status.json", "checkpoint-20.pt", "checkpoint-30.pt")


@pytest.fixture(scope="module")
def halfway(tmp_path_factory) -> Path:
    """A folder of runs that were stopped at the same step: one like any other, one made elsewhere."""
    root = tmp_path_factory.mktemp("interrupted")
    interrupted(root / "mine")
    interrupted(root / "other")
    with RunLog(root / "other", a_config()) as log:
        log.begin(HERE | {"threads": 3})
    return root


@pytest.fixture(scope="module")
def undamaged(halfway, tmp_path_factory) -> tuple[list, dict]:
    return resumed(shutil.copytree(halfway / "mine", tmp_path_factory.mktemp("whole") / "run"))


@FEW
@given(name=st.sampled_from(INTERRUPTED), damage=HURT)
def test_any_damage_to_an_interrupted_run_is_named_or_makes_no_difference(
    halfway, undamaged, tmp_path_factory, name, damage
):
    folder = shutil.copytree(halfway / "mine", tmp_path_factory.mktemp("hurt") / "run")
    hurt(folder / name, *damage, halfway / "other")
    try:
        rows, made_by = resumed(folder)
    except UserError as error:
        assert "\n" not in str(error) and str(folder) in str(error)
        return
    assert rows == undamaged[0]
    assert made_by == undamaged[1] or any(" then " in str(value) for value in made_by.values())


def test_every_knob_is_tried_and_a_plain_run_trains(composed):
    assert len(KNOBS) == len([key for key in keys(Config()) if key.startswith(SECTIONS)]) - 1
    assert all(len(values) > 1 for values in KNOBS.values())
    assert fate(composed, {}) == "trained"
