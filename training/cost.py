"""What a variant costs, counted from the built model: parameters, FLOPs, key/value cache."""

from dataclasses import asdict, dataclass, fields

import torch
from torch import nn

from config import Config, ModelConfig, TrainConfig, UserError
from gpt import GPT
from parts.linear import Embedding

BYTES = 2  # of one number in a key/value cache (16 bit)
SIZE = ("n_layer", "n_head", "d_model", "context")  # of every variant alike


@dataclass(frozen=True)
class Cost:
    total: int  # parameters, a tied table once
    non_embedding: int  # without the tables of symbols and places
    active: int  # parameters that one symbol passes through
    flops_per_token: int  # training: forward and twice that for backward
    kv_bytes_per_token: int  # 16-bit cache over all layers

    params = property(lambda self: {k: v for k, v in asdict(self).items() if k in ("total", "non_embedding", "active")})


def cost(model: GPT, context: int) -> Cost:
    """FLOPs are of the matrix products alone, 2 per weight, with attention over the whole context (no causal half)."""
    total = sum(p.numel() for p in model.parameters())
    tables = sum(m.weight.numel() for m in model.modules() if isinstance(m, Embedding))
    weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    unembedded = model.writer.weight.numel() * (1 + len(model.ahead))
    forward = 2 * (weights + unembedded) + sum(m.flops(context) for m in model.modules() if hasattr(m, "flops"))
    inactive = sum(m.inactive() for m in model.modules() if hasattr(m, "inactive"))
    return Cost(
        total=total,
        non_embedding=total - tables,
        active=total - inactive,
        flops_per_token=3 * forward,
        kv_bytes_per_token=round(BYTES * sum(block.attention.kv_numbers(context) for block in model.blocks)),
    )


def of_config(c: ModelConfig, vocab_size: int) -> Cost:
    """The cost of a configuration; no memory is taken for its weights."""
    with torch.device("meta"):
        return cost(GPT(c, vocab_size), c.context)


class Watched:
    """A configuration that notes which of its knobs are read."""

    def __init__(self, c: ModelConfig | TrainConfig):
        self.c, self.read = c, set()

    def __getattr__(self, name: str):
        self.read.add(name)
        found = getattr(type(self.c), name, None)
        return found.fget(self) if isinstance(found, property) else getattr(self.c, name)


def require_read(c: ModelConfig) -> None:
    """Raises UserError for a knob off its default that no part of the model reads: turning it would do nothing."""
    watched = Watched(c)
    of_config(watched, vocab_size=1)
    for f in fields(c):
        value = getattr(c, f.name)
        if value != f.default and f.name not in watched.read | set(SIZE):
            raise UserError(f"model.{f.name}={value}: nothing in this model reads it; leave it at {f.default}")


def baseline_of(model: ModelConfig) -> ModelConfig:
    """The baseline at the same size: what a variant's cost is compared with."""
    return ModelConfig(**{name: getattr(model, name) for name in SIZE})


def require_match(config: Config) -> tuple[Cost, Cost]:
    """The cost of the run and of the baseline at its size.

    Raises UserError where they differ by more than 1% in non-embedding parameters and the swap
    does not declare itself unmatched.
    """
    mine = of_config(config.model, config.run.vocab_size)
    base = of_config(baseline_of(config.model), config.run.vocab_size)
    gap = mine.non_embedding / base.non_embedding - 1
    if config.about.matched and abs(gap) > 0.01:
        raise UserError(
            f"swap={config.run.swap}: {mine.non_embedding:,} non-embedding parameters against the baseline's "
            f"{base.non_embedding:,} ({gap:+.1%}); more than 1% apart needs about.matched=false and about.reason"
        )
    return mine, base
