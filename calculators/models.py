"""A model as numbers: the published ones, each field with its source, and how its layers differ."""

import re
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path

from config import UserError, lookup
from storage import files

SOURCE = Path(__file__).parent.parent / "data" / "published_models.yaml"
ABOUT = ("source", "note")  # of a group of fields


@dataclass(frozen=True)
class Delta:
    """A layer of the gated delta rule (Yang et al. 2024, arXiv:2412.06464), as Qwen3-Next has it."""

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    conv: int  # symbols under the convolution


@dataclass(frozen=True)
class Mamba:
    """A state-space layer (Gu & Dao 2023, arXiv:2312.00752), as Jamba has it: with norms inside."""

    inner: int  # width
    state: int  # numbers kept for each unit of the inner width
    conv: int
    step_rank: int  # through which the step size is read


@dataclass(frozen=True)
class Model:
    """Fields that are 0, empty or false are things that the model does not have. Patterns are tiled over the layers."""

    label: str
    n_layer: int
    d_model: int
    n_head: int  # of queries
    n_kv_head: int
    head_size: int
    vocab: int = 0
    tied: bool = False
    positions: int = 0  # rows of a learned table
    attention_bias: str = ""  # qkv | all
    attention_gate: bool = False  # a second query-wide projection that gates the output
    qk_norm: str = ""  # head: one gain a head size; width: one over all heads
    sinks: bool = False  # a learned number a head in the softmax
    q_rank: int = 0  # latent attention: of the queries
    kv_rank: int = 0  # of keys and values; what is kept of a token, beside the rotated key
    rotated: int = 0
    windows: tuple[int | None, ...] = (None,)  # keys that a layer sees; null: all
    mixers: tuple[str, ...] = ("attention",)  # attention | delta | mamba
    delta: Delta | None = None
    mamba: Mamba | None = None
    mlp_width: int = 0
    gated: bool = True  # three matrices, not two
    mlp_bias: bool = False
    mlps: tuple[str, ...] = ("dense",)  # dense | experts
    dense_first: int = 0  # layers that have a dense MLP whatever the pattern says
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0
    shared_width: int = 0  # of the experts that every token passes through, together
    shared_gate: bool = False
    router_bias: bool = False
    norms: int = 2  # a layer
    norm_bias: bool = False
    published_total: float = 0  # parameters, as its makers say
    published_active: float = 0

    def layers(self):
        """(mixer, window, mlp) of each layer."""
        for i in range(self.n_layer):
            mlp = "dense" if i < self.dense_first else self.mlps[i % len(self.mlps)]
            yield self.mixers[i % len(self.mixers)], self.windows[i % len(self.windows)], mlp

    @property
    def published(self) -> str:
        """What its makers say of the size, in words."""
        said = [f"{self.published_total / 1e9:g}B"] * bool(self.published_total)
        said += [f"{self.published_active / 1e9:g}B active"] * bool(self.published_active)
        return ", ".join(said)


def make(plain: dict, where: str) -> Model:
    """Raises UserError, naming the field, where one is missing."""
    missing = [f.name for f in fields(Model) if f.default is MISSING and plain.get(f.name) is None]
    if missing:
        raise UserError(f"{where}: no {', '.join(missing)}")
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()}
    parts = {"delta": Delta, "mamba": Mamba}
    plain |= {key: kind(**plain[key]) for key, kind in parts.items() if isinstance(plain.get(key), dict)}
    return Model(**plain)


def gathered(entry: dict) -> dict:
    """The fields of one entry of the file, whatever source each comes from."""
    groups = [{key: value for key, value in group.items() if key not in ABOUT} for group in entry["fields"]]
    return {"label": entry["label"], **{key: value for group in groups for key, value in group.items()}}


def sources(entry: dict) -> list[str]:
    """Where the fields of one entry come from."""
    return [group["source"] for group in entry["fields"]]


@cache
def entries() -> dict[str, dict]:
    """The file, by name."""
    return files.load(SOURCE)


def key(name: str) -> str:
    """The name in the file, from any spelling of case and spaces. Raises UserError with the nearest name."""
    plain = re.sub(r"[\s_]+", "-", name.strip().lower())
    lookup(entries(), plain, "--model")
    return plain


def published(name: str) -> Model:
    """Raises UserError with the nearest name."""
    return make(gathered(entries()[key(name)]), name)
