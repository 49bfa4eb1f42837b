"""The position seam: how a model knows where a symbol stands.

One object serves the whole model. `embed` may change the embedded input (B, T, D); `rotate` may
change queries and keys (B, heads, T, head size). Either leaves alone what it does not use.
"""

import torch
from torch import nn

from config import ModelConfig, UserError
from parts.linear import Embedding


class RoPE(nn.Module):
    """Rotates pairs (i, i + half) of a query or key by place * base^(-i / half), so that scores see distance.

    Su et al. 2021, arXiv:2104.09864. Raises UserError for an odd head size.
    """

    def __init__(self, c: ModelConfig):
        super().__init__()
        if c.head_size % 2:
            raise UserError(
                f"model.position=rope rotates pairs: model.d_model={c.d_model} / model.n_head={c.n_head} must be even"
            )
        speed = c.rope_base ** (-torch.arange(0, c.head_size, 2) / c.head_size)
        angle = torch.outer(torch.arange(c.context), speed)  # (T, head / 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def embed(self, x):
        return x

    def rotate(self, x):
        T = x.shape[-2]
        cos, sin = self.cos[:T].to(x.dtype), self.sin[:T].to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Learned(nn.Module):
    """A trained vector per place, added to the input (Radford et al. 2019, GPT-2)."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.table = Embedding(c.context, c.d_model)

    def embed(self, x):
        return x + self.table.weight[: x.shape[-2]]

    def rotate(self, x):
        return x


POSITIONS = {"rope": RoPE, "learned": Learned}
