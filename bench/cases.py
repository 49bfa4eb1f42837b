"""What is measured: the sizes, the contenders, and how long. A new contender is a line in `on_cpu` or `on_gpu`."""

import string
from dataclasses import dataclass
from pathlib import Path
from random import Random

import cli
from engine.plan import Freezer, Job

BLOCK = ("model.mlp=gelu", "model.norm=layernorm", "model.position=learned")  # nanoGPT's, out of our parts
WIDE = ("scale=cpu", "model.d_model=128", "train.batch_size=32")
COMPILED, PLAIN = ("machine.compile=true",), ("machine.compile=false",)
FLOAT32 = ("machine.precision=fp32",)  # all that nanoGPT's train.py does on a CPU
SYMBOLS = string.ascii_letters + string.digits + " \n"


@dataclass(frozen=True)
class Contender:
    """One line of the speed table: `processes` workers that train at the same moment, their rates added."""

    name: str
    builder: str  # learners.BUILDERS
    threads: int
    processes: int = 1
    overrides: tuple[str, ...] = PLAIN
    costly: bool = False  # half a minute of compiling for each size

    @property
    def all_overrides(self) -> tuple[str, ...]:
        return (*self.overrides, f"machine.threads={self.threads}")


@dataclass(frozen=True)
class Case:
    """A size at which contenders train."""

    name: str
    overrides: tuple[str, ...]
    costly: bool = False  # with those that are

    def takes(self, contender: Contender) -> bool:
        return self.costly or not contender.costly


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    cases: tuple[Case, ...]
    rounds: int
    seconds: float  # of training, each round
    norm_shapes: tuple[str, ...]  # names in norms.SHAPES
    norm_seconds: float
    base: tuple[str, ...]  # the point from which growth starts
    growth: dict[str, tuple[int, ...]]  # axis -> values
    growth_seconds: float
    freezes: int
    sweeps: tuple[int, int]  # jobs of a small sweep and of a larger one


FULL = Plan(
    cases=(
        Case("width 128, dropout 0.2", (*WIDE, "model.dropout=0.2"), costly=True),
        Case("width 128, dropout 0", (*WIDE, "model.dropout=0")),
        Case("scale blog", ("scale=blog",), costly=True),
    ),
    rounds=3,
    seconds=1.0,
    norm_shapes=("blog", "wide"),
    norm_seconds=0.05,
    base=("scale=cpu",),
    growth={
        "layers": (2, 4, 8, 16),
        "width": (48, 96, 192, 384),
        "context": (64, 128, 256, 512),
        "batch": (4, 8, 16, 32),
        "seeds": (1, 2, 4, 8),
        "jobs": (1, 2, 4),
    },
    growth_seconds=0.4,
    freezes=1000,
    sweeps=(2, 20),
)
QUICK = Plan(
    cases=(Case("scale smoke", ("scale=smoke",)),),
    rounds=1,
    seconds=0.05,
    norm_shapes=("smoke",),
    norm_seconds=0.001,
    base=("scale=smoke",),
    growth={"layers": (1, 2)},
    growth_seconds=0.05,
    freezes=5,
    sweeps=(1, 2),
)


def on_cpu(cores: int, bf16: bool, peer: bool, hf: tuple[str, ...]) -> list[Contender]:
    """All that train against each other. `peer`: with nanoGPT; `hf`: the names of the other peers in BUILDERS."""
    found = [
        Contender("ours, nanoGPT's block", "ours", cores, 1, (*BLOCK, *PLAIN)),
        Contender("ours, nanoGPT's block, compiled", "ours", cores, 1, (*BLOCK, *COMPILED), costly=True),
        Contender("ours, baseline block", "ours", cores),
        Contender("our sweep, nanoGPT's block", "ours", 1, cores, (*BLOCK, *PLAIN)),
        Contender("our sweep, nanoGPT's block, compiled", "ours", 1, cores, (*BLOCK, *COMPILED), costly=True),
    ]
    if peer:
        found += [
            Contender("nanoGPT", "nanogpt", cores, 1, (*FLOAT32, *PLAIN)),
            Contender("nanoGPT, a process a core", "nanogpt", 1, cores, (*FLOAT32, *PLAIN)),
        ]
    if peer and bf16:  # its train.py would not, but it could
        found += [
            Contender("nanoGPT + autocast", "nanogpt", cores),
            Contender("nanoGPT + autocast, compiled", "nanogpt", cores, 1, COMPILED, costly=True),
        ]
    return found + [Contender(LABELS[name], name, cores) for name in hf]


def on_gpu(peer: bool, hf: tuple[str, ...]) -> list[Contender]:
    """One worker each."""
    found = [
        Contender("ours, nanoGPT's block, compiled", "ours", 1, 1, (*BLOCK, *COMPILED)),
        Contender("ours, nanoGPT's block, 8 seeds packed", "ours", 1, 1, (*BLOCK, "machine.pack=8", *COMPILED)),
        Contender("ours, baseline block, compiled", "ours", 1, 1, COMPILED),
    ]
    if peer:
        found.append(Contender("nanoGPT, compiled", "nanogpt", 1, 1, COMPILED))
    return found + [Contender(f"{LABELS[name]}, compiled", name, 1, 1, COMPILED) for name in hf]


class Sizes:
    """From overrides to a frozen job on a text that needs no network: random symbols, as many kinds as a char text."""

    def __init__(self, folder: Path):
        self.text, self.freezer = folder / "bench.txt", Freezer()
        self.text.write_text("".join(Random(7).choices(SYMBOLS, k=300_000)))

    def job(self, *overrides: str) -> Job:
        composed = cli.compose([*overrides, "text=file", "wandb.mode=disabled"])
        composed.text.path = str(self.text)
        return self.freezer.freeze(composed)


# What a peer cannot be asked for is part of its name.
LABELS = {
    "llama": "transformers Llama (attention dropout only)",
    "x_transformers": "x-transformers (dropout inside the MLP, not behind it)",
}
