"""What several tests share: a small text, the project's commands, and a composed, frozen configuration."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from config import Config
from engine.plan import Freezer, Job

ROOT = Path(__file__).parents[1]
# Where the tests of numbers run: DEVICE=cuda holds a GPU to what the CPU says (scripts/gpu_check.sh).
DEVICE = os.environ.get("DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
SWAPS = sorted(path.stem for path in (ROOT / "conf/swap").glob("*.yaml"))
NEEDS = {  # what a swap needs at smoke scale to show itself
    "local_global_5_1": ["model.n_layer=6"],  # its pattern has as many letters
    "rope_3_of_4": ["model.n_layer=4"],
    "delta_hybrid": ["model.n_layer=4"],
    "ssm_hybrid": ["model.n_layer=4"],
    "warmup": ["train.warmup=5"],  # of 20 steps
    "warmup_cosine": ["train.warmup=5"],
    "cosine_cut": ["train.horizon=40"],
    "bpe": ["text.bpe_vocab=300"],  # the text of the tests has few words
    "no_dropout": [  # the scale that has dropout, made small
        "scale=blog", "model.n_layer=2", "model.n_head=4", "model.d_model=48", "model.context=32",
        "machine.compile=false", "train.batch_size=8", "train.checkpoints=[]", "train.log_every=1",
    ],
}  # fmt: skip

torch.set_num_threads(1)  # as a run does; tests share the cores with each other


def write_text(path: Path, size: int = 30_000) -> Path:
    """A text with something to learn: words of a small vocabulary, in random order."""
    draw = random.Random(7)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(200)]
    path.write_text(" ".join(draw.choice(words) for _ in range(size // 5))[:size])
    return path


@pytest.fixture(scope="session")
def text_file(tmp_path_factory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "words.txt")


@pytest.fixture
def freeze(text_file, tmp_path):
    """freeze("swap=gelu", ...) -> Job at smoke scale on the small text, with runs/ and results/ in tmp_path."""
    return lambda *overrides: frozen(tmp_path, text_file, *overrides)


def frozen(folder: Path, text_file: Path, *overrides: str) -> Job:
    import cli

    return Freezer().freeze(cli.compose([*places(folder, text_file), *overrides]))


@pytest.fixture
def config(freeze) -> Config:
    return freeze().config


def places(tmp_path: Path, text_file: Path) -> list[str]:
    """Overrides that keep a command away from the project's own runs, results and texts."""
    return [
        "scale=smoke", "text=file", f"text.path={text_file}", f"runs_dir={tmp_path / 'runs'}",
        f"results_dir={tmp_path / 'results'}", "wandb.mode=disabled",
    ]  # fmt: skip


@pytest.fixture
def command(text_file, tmp_path):
    """command("swap=gelu", ...) runs `python train.py` as a person does; keywords go to subprocess."""

    def line(*overrides: str) -> list[str]:
        flags = [word for word in overrides if word.startswith("-")]  # Hydra wants -m beside, not among, the overrides
        rest = [word for word in overrides if word not in flags]
        return [sys.executable, str(ROOT / "train.py"), *flags, *places(tmp_path, text_file), *rest]

    def run(*overrides: str, **options) -> subprocess.CompletedProcess:
        return subprocess.run(line(*overrides), **{**DEFAULTS, "cwd": tmp_path, **options})

    run.line = line
    return run


DEFAULTS = {
    "text": True,
    "capture_output": True,
    "stdin": subprocess.DEVNULL,
    "timeout": 300,
    "env": {**os.environ, "COLUMNS": "200", "WANDB_API_KEY": ""},
}
