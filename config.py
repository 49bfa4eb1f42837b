"""Every knob of a run: its default, unit and meaning. No default stands anywhere else.

The defaults of `ModelConfig` are the baseline block. `conf/scale` says how large and how long,
`conf/text` on what, `conf/swap` which piece is exchanged; Hydra lays them over these classes.
"""

import difflib
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from omegaconf import OmegaConf


class UserError(Exception):
    """A mistake of the person who typed the command: shown as one line, exit status 2."""


class Kind(Enum):
    char = "char"  # one symbol per character of the training split
    byte = "byte"  # one symbol per byte
    bpe = "bpe"  # byte-level BPE, trained on the training split


class Split(Enum):
    tail = "tail"  # the last part of each document is dev
    documents = "documents"  # whole documents are dev


class Precision(Enum):
    auto = "auto"  # bf16 where the device computes in it, else fp32
    fp32 = "fp32"
    bf16 = "bf16"  # autocast; weights, optimizer and loss stay float32


class WandbMode(Enum):
    auto = "auto"  # online where a key is found and the server answers, else offline
    online = "online"
    offline = "offline"
    disabled = "disabled"


@dataclass
class About:
    """What a swap says of itself. Tables and figures take their words from here."""

    seam: str = "baseline"  # wiring | norm | mlp | position | optimizer | ...
    label: str = "SwiGLU + RMSNorm (baseline)"
    replaces: str = ""  # what the baseline has in this place
    paper: str = ""
    matched: bool = True  # non-embedding parameters within 1% of the baseline
    reason: str = ""  # why not, where matched is false


@dataclass
class ModelConfig:
    """The network. The first four are its size, shared by every variant; the rest is the baseline."""

    n_layer: int = 4
    n_head: int = 4
    d_model: int = 96  # a multiple of 3, so that 8/3 D is whole and SwiGLU and GELU match exactly
    context: int = 128  # symbols
    head_width: int | None = None  # numbers of a head; null: d_model / n_head

    wiring: str = "prenorm"  # gpt.WIRINGS
    norm: str = "rmsnorm"  # parts.norms.NORMS
    norm_eps: float = 1e-5
    qk_norm: str = "none"  # parts.norms.NORMS, on queries and keys before they are rotated
    qk_norm_over: str = "head"  # parts.norms.SPANS: what one of those norms is taken over
    mlp: str = "swiglu"  # gpt.MLPS
    mlp_width: int | None = None  # hidden units; null: the width at which every MLP has 8 D^2 weights
    first_dense: int = 0  # layers at the start that have a SwiGLU in place of the MLP named above
    dense_width: int | None = None  # hidden units of those; null: 8/3 D
    attention: str = "mha"  # gpt.ATTENTIONS; a comma list is tiled over the layers
    n_kv_head: int | None = None  # heads of keys and values, shared by groups of query heads; null: n_head
    windows: str = "L"  # a letter a layer, tiled over the layers: L sees everything before it, S a short window
    window: int | None = None  # symbols that an S layer sees, its own among them; null: a quarter of the context
    sinks: bool = False  # one learned logit a head that takes attention and gives nothing
    score_scale: float | None = None  # of a query times a key; null: 1 / sqrt(numbers of both)
    score_softcap: float | None = None  # bound on attention scores; null: none
    logit_softcap: float | None = None  # bound on the model's logits; null: none
    position: str = "rope"  # parts.positions.POSITIONS
    rope_base: float = 10_000.0
    rope_base_local: float | None = None  # of S layers, whose speeds are never scaled; null: like L layers
    rotated: int | None = None  # numbers of a head that rope turns; null: all (of mla: half as many besides)
    nope_every: int | None = None  # one layer out of so many goes without rotation; null: none does
    rope_scaling: str = "none"  # parts.positions.SCALINGS, for texts longer than the context
    rope_factor: float | None = None  # by how much the scaling stretches; null: as much as the text needs
    rope_trained: int | None = None  # symbols before scaling, which then always holds; null: only beyond the context
    rope_fast: float = 32.0  # turns within those symbols from which a pair keeps its speed (yarn, turns)
    rope_slow: float = 1.0  # turns up to which a pair is slowed by the whole factor (yarn, turns)
    rope_gain: float | None = None  # on scaled queries and keys (yarn); null: 1 + ln(factor) / 10
    rope_whole: bool = True  # whether the ramp from slow to fast starts and ends at whole pairs (yarn)
    wave_height: float | None = None  # of sinusoidal positions; null: the spread of the embedded input
    bias: str = "none"  # parts.linear.BIASES
    embedding_power: float = 0.0  # the embedded input is multiplied by d_model to this power
    tied: bool = True  # one table reads symbols and writes their logits
    dropout: float = 0.0  # on the embedding, the attention weights and each branch's output

    n_experts: int = 8  # of a mixture
    top_k: int = 2  # experts that a symbol passes through
    n_shared: int = 1  # experts besides, which every symbol passes through (moe_shared)
    gating: str = "swiglu"  # parts.experts.GATINGS: what an expert does with its gate
    router: str = "softmax"  # parts.experts.ROUTERS
    gate_sum: bool = True  # whether the gates of the chosen experts are made to sum to 1
    gate_scale: float = 1.0  # by which they are multiplied then
    expert_groups: int = 1  # in which the experts stand
    top_groups: int = 1  # that a symbol may choose from
    balance_weight: float = 0.01  # of the loss that evens the load (router softmax)
    bias_rate: float = 0.001  # by which an expert's bias moves after each update (router sigmoid)
    latent_width: int | None = None  # of mla; null: the width at which it has multi-head attention's 4 D^2 weights
    latent_eps: float | None = None  # of the norms inside mla; null: norm_eps
    query_width: int | None = None  # of a latent for mla's queries; null: none
    value_width: int | None = None  # numbers of a value of mla; null: as many as of a key that are not rotated
    sparse_keys: int = 16  # that a query sees (dsa)
    index_heads: int = 2  # of the indexer that chooses them
    sparse_block: int = 8  # symbols in a block (nsa)
    sparse_blocks: int = 6  # that a query sees in full
    sparse_window: int = 16  # symbols that it sees besides, itself included
    predict_ahead: int = 0  # symbols behind the next that a head of its own learns from

    @property
    def head_size(self) -> int:
        """Raises UserError where the heads do not divide the width and have none of their own."""
        if self.head_width:
            return self.head_width
        if self.d_model % self.n_head:
            raise UserError(f"model.n_head={self.n_head} does not divide model.d_model={self.d_model}")
        return self.d_model // self.n_head


@dataclass
class TrainConfig:
    steps: int = 800
    batch_size: int = 8  # sequences a step
    optimizer: str = "adamw"  # optim.OPTIMIZERS
    lr: float = 1e-3  # peak learning rate
    schedule: str = "constant"  # optim.SCHEDULES
    warmup: int = 0  # steps of linear warm-up, under any schedule
    horizon: int | None = None  # step at which a falling rate is at its lowest; null: steps, later: the run ends before
    weight_decay: float = 0.1  # on matrices only
    beta1: float = 0.9
    beta2: float = 0.95
    grad_clip: float = 1.0  # largest gradient norm
    label_smoothing: float = 0.0  # share of the target that is spread over all symbols
    z_loss: float = 0.0  # weight of the squared log of the softmax's normalizer
    checkpoints: list[int] = field(default_factory=list)  # steps evaluated besides 0 and the last
    log_every: int = 10  # steps between rows of the training loss
    save_every: int = 100  # steps between resume points
    ahead_weight: float = 0.3  # of the mean loss of model.predict_ahead's heads


@dataclass
class EvalConfig:
    context: int | None = None  # symbols a window holds; null: model.context
    stride: int | None = None  # symbols a window moves on; null: the whole window
    batch_size: int = 16  # windows at once; never changes the result


@dataclass
class TextConfig:
    name: str = "canterbury"
    path: str | None = None  # file or folder; null: data/<name>
    kind: Kind = Kind.char
    split: Split = Split.tail
    dev_fraction: float = 0.1  # of each document (tail) or of all bytes (documents)
    train_bytes: int | None = None  # train on this many bytes; null: all
    dev_bytes: int | None = None  # score this many bytes; null: all
    bpe_vocab: int = 1024  # symbols, where kind is bpe


@dataclass
class MachineConfig:
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    precision: Precision = Precision.auto
    threads: int = 1  # CPU threads of a run; more pays only for one run alone on an idle machine
    compile: bool = False  # torch.compile
    pack: int | None = None  # seeds of a variant that train as one stacked model; null: all on a GPU, one on a CPU


@dataclass
class WandbConfig:
    mode: WandbMode = WandbMode.auto
    project: str = "oneswap"
    entity: str | None = None


@dataclass
class RunConfig:
    """Where a run stands. Filled in when its configuration is frozen, never by hand."""

    scale: str = ""
    sweep: str = ""
    swap: str = ""
    variant: str = ""  # the swap, and the values of any other swept key
    axes: dict[str, Any] = field(default_factory=dict)  # those other keys and values
    text_sha256: str = ""  # of the training and dev bytes
    vocab_size: int = 0


@dataclass
class Config:
    seed: int = 0
    name: str | None = None  # folder of these runs; null: the sweep file's name, or "scratch"
    about: About = field(default_factory=About)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    text: TextConfig = field(default_factory=TextConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    run: RunConfig = field(default_factory=RunConfig)
    runs_dir: str = "runs"
    results_dir: str = "results"

    @property
    def step_symbols(self) -> int:
        """That one update trains on."""
        return self.train.batch_size * self.model.context

    @property
    def eval_context(self) -> int:
        """Symbols of an evaluation window."""
        return self.eval.context or self.model.context


@dataclass
class GenerateConfig:
    """The knobs of generate.py."""

    run: str = ""  # folder of a finished run
    prompt: str = ""  # what the text begins with
    tokens: int = 200  # symbols to write behind it
    temperature: float = 1.0  # the logits are divided by it; 0: always the likeliest symbol
    top_k: int | None = None  # draw among so many of the likeliest symbols; null: among all
    top_p: float | None = None  # draw among the likeliest symbols that together have this probability; null: among all
    seed: int = 0  # of the draws
    cache: bool = True  # keep keys and values; false: compute all anew for each symbol, for the same text
    device: str = "auto"  # auto | cpu | cuda | cuda:N


def lookup(table: dict, name: str, key: str):
    """The entry of a dict of alternatives.

    Raises UserError, naming the key and the allowed values.
    """
    if name not in table:
        raise UserError(f"{key}={name}: {no_such(name, table)}")
    return table[name]


def no_such(name: str, allowed) -> str:
    """'unknown ...; did you mean x? Allowed: ...', for any list of allowed names."""
    allowed = sorted(map(str, allowed))
    near = difflib.get_close_matches(str(name), allowed, n=1)
    return "unknown" + (f", did you mean {near[0]}?" if near else ".") + f" Allowed: {', '.join(allowed)}"


def keys(section, prefix: str = "") -> list[str]:
    """The dotted names of all knobs below a dataclass."""
    found = []
    for f in fields(section):
        value = getattr(section, f.name)
        found += keys(value, f"{prefix}{f.name}.") if hasattr(value, "__dataclass_fields__") else [prefix + f.name]
    return found


def to_plain(value: Any) -> Any:
    """The configuration as nested plain values (enums by name): what is written to a run's folder."""
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {key: to_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(inner) for inner in value]
    return value.name if isinstance(value, Enum) else value


def from_plain(plain: dict) -> Config:
    """The inverse of `to_plain`. Raises omegaconf's errors for unknown keys and wrong types."""
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), plain))
