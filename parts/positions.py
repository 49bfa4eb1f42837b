"""The position seam: how a model knows where a symbol stands.

One object serves the whole model. `embed` may change the embedded input (B, T, D); `rotate` may
change queries and keys (B, heads, T, head size). Either leaves alone what it does not use. `start` is the place of
the first of the T symbols.
"""

import math
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from config import ModelConfig, UserError, lookup
from parts.linear import STD, Embedding
from parts.memory import AtOnce


class NoPosition(AtOnce, nn.Module):
    """None at all: the causal mask alone tells order (Kazemnejad et al. 2023, arXiv:2305.19466)."""

    endless = True  # whether there is a place beyond the context

    def __init__(self, c: ModelConfig):
        super().__init__()

    def embed(self, x, start: int = 0):
        return x

    def rotate(self, x, start: int = 0):
        return x

    def of(self, layer: int) -> nn.Module:
        """What the attention of a layer is given."""
        return self

    def reach(self, T: int) -> None:
        """From now on, places are those of a text of T symbols, of which each call may bring a part."""


class RoPE(NoPosition):
    """Rotates pairs (i, i + half) of a query or key by place * base^(-i / half), so that scores see distance.

    Su et al. 2021, arXiv:2104.09864. With `nope_every` n, each n-th layer is not rotated, as in Llama 4. With
    `rotated`, the pairs of so many numbers turn and the others stand still, as in GPT-J.
    `size`: numbers of what is rotated; `base`: of layers that see a short window.
    Raises UserError for a size that is not even, or too few layers to leave one out.
    """

    def __init__(self, c: ModelConfig, size: int | None = None, base: float | None = None):
        super().__init__(c)
        self.size, self.still_pairs = size or c.rotated or c.head_size, 0
        if not size and c.head_size > self.size:
            self.still_pairs = (c.head_size - self.size) // 2
        if self.size % 2 or c.head_size % 2:
            what = f"model.rotated={c.rotated} and " if c.rotated else ""
            heads = f"model.d_model={c.d_model} / model.n_head={c.n_head}"
            raise UserError(f"model.position=rope rotates pairs: {what}{heads} must be even")
        if not size and self.size > c.head_size:
            raise UserError(f"model.rotated={c.rotated}: at most {c.head_size}, the numbers of a head")
        self.every, self.still = c.nope_every or math.inf, NoPosition(c)
        if c.nope_every and c.nope_every > c.n_layer:
            raise UserError(f"model.nope_every={c.nope_every}: leaves out none of model.n_layer={c.n_layer} layers")
        self.context, self.base, self.scaling = c.context, base or c.rope_base, unscaled
        self.factor = self.trained = None
        if not base and lookup(SCALINGS, c.rope_scaling, "model.rope_scaling") is not unscaled:
            self.scaling, self.factor, self.trained = scaling(c), c.rope_factor, c.rope_trained
        cos, sin = self.waves(c.context, always=self.trained is not None)
        self.register_buffer("cos", cos, persistent=False)  # (T, head / 2)
        self.register_buffer("sin", sin, persistent=False)
        self.letters, self.local = "L", None
        if c.rope_base_local and not base:
            if "S" not in c.windows:
                raise UserError(f"model.rope_base_local={c.rope_base_local}: model.windows={c.windows} has no S layer")
            self.letters, self.local = c.windows, RoPE(c, size, c.rope_base_local)

    def of(self, layer):
        if layer % self.every == self.every - 1:
            return self.still
        return self.local if self.letters[layer % len(self.letters)] == "S" else self

    def rotate(self, x, start=0):
        cos, sin = (table[start:].to(x.dtype) for table in self.tables(start + x.shape[-2]))
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    def tables(self, T: int):
        """Cosines and sines of T places (T, head / 2)."""
        return (self.cos[:T], self.sin[:T]) if len(self.cos) >= T else self.made(T)

    def made(self, T: int):
        """Of a text of T places; of more than the context, with speeds that are scaled to reach so far."""
        always = self.trained is not None or self.context < T
        return [table.to(self.cos.device) for table in self.waves(T, always)]

    def reach(self, T):
        self.cos, self.sin = self.made(T)

    def waves(self, T: int, always: bool):
        """Cosines and sines of T places, always or not with scaled speeds."""
        speed, gain = speeds(self.base, self.size), 1.0
        if always:
            trained = self.trained or self.context
            speed, gain = self.scaling(speed, self.factor or T / trained, trained, self.base)
        return (gain * table for table in waves(T, F.pad(speed, (0, self.still_pairs))))


def speeds(base: float, size: int):
    """Radians a place, of each pair (size / 2,)."""
    return base ** (-torch.arange(0, size, 2) / size)


def waves(T: int, speed):
    """cos and sin of place * speed, each (T, speeds)."""
    angle = torch.outer(torch.arange(T), speed)
    return angle.cos(), angle.sin()


def unscaled(speed, factor: float, context: int, base: float):
    return speed, 1.0


def linear(speed, factor: float, context: int, base: float):
    """All speeds slower, so that no angle is new (position interpolation; Chen et al. 2023, arXiv:2306.15595)."""
    return speed / factor, 1.0


def yarn(speed, factor: float, context: int, base: float, *, fast: float, slow: float, gain: float | None, whole: bool):
    """Fast pairs as they are, slow ones slower, a ramp between; scores a little sharper (arXiv:2309.00071).

    A pair that turns more than `fast` times within the context is fast, less than `slow` times slow. The ramp
    runs over the pairs' numbers, as in the authors' code; the gain is on queries and keys alike.
    """

    def pair(turns: float) -> float:
        return len(speed) * math.log(context / (turns * 2 * math.pi)) / math.log(base)

    first, last = (math.floor(pair(fast)), math.ceil(pair(slow))) if whole else (pair(fast), pair(slow))
    first, last = max(first, 0), min(last, 2 * len(speed) - 1)
    slower = ((torch.arange(len(speed)) - first) / max(last - first, 0.001)).clamp(0, 1)
    return speed * (1 - slower + slower / factor), gain or 0.1 * math.log(factor) + 1


def turns(speed, factor: float, context: int, base: float, *, fast: float, slow: float):
    """As yarn, but the ramp runs over the turns that a pair makes within the context (arXiv:2407.21783)."""
    kept = ((context * speed / (2 * math.pi) - slow) / (fast - slow)).clamp(0, 1)
    return speed * (kept + (1 - kept) / factor), 1.0


def scaling(c: ModelConfig):
    """The scaling that the configuration names, with the knobs that it alone reads."""
    numbers = {name: getattr(c, f"rope_{name}") for name in READS.get(c.rope_scaling, ())}
    return partial(SCALINGS[c.rope_scaling], **numbers)


class Sinusoidal(NoPosition):
    """Fixed waves added to the input (Vaswani et al. 2017, arXiv:1706.03762).

    The embedding had a spread of 1 there; here the waves are as much smaller as it is.
    """

    def __init__(self, c: ModelConfig):
        super().__init__(c)
        self.width, self.scale = c.d_model, c.wave_height or STD * c.d_model**c.embedding_power
        self.register_buffer("table", self.waves(c.context), persistent=False)

    def waves(self, T: int):
        speed = 10_000.0 ** (-torch.arange(0, self.width, 2) / self.width)
        return self.scale * torch.stack(waves(T, speed)[::-1], dim=-1).flatten(1)[:, : self.width]  # sin, cos, sin, ...

    def embed(self, x, start=0):
        T = start + x.shape[-2]
        return x + (self.table if len(self.table) >= T else self.waves(T).to(x.device))[start:T]

    def reach(self, T):
        self.table = self.waves(T).to(self.table.device)


class Learned(NoPosition):
    """A trained vector per place, added to the input (Radford et al. 2019, GPT-2)."""

    endless = False

    def __init__(self, c: ModelConfig):
        super().__init__(c)
        self.table = Embedding(c.context, c.d_model)

    def embed(self, x, start=0):
        return x + self.table.weight[start : start + x.shape[-2]]


POSITIONS = {"rope": RoPE, "learned": Learned, "sinusoidal": Sinusoidal, "none": NoPosition}
SCALINGS = {"none": unscaled, "linear": linear, "yarn": yarn, "turns": turns}
READS = {"yarn": ("fast", "slow", "gain", "whole"), "turns": ("fast", "slow")}  # model.rope_...
