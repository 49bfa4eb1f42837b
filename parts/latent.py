"""Multi-head latent attention: what generation keeps of a symbol is one narrow vector, shared by all heads."""

import torch
from torch import nn

from config import ModelConfig, UserError, lookup
from parts.attention import attend, stretch
from parts.dropout import Dropout
from parts.linear import Linear, require_unbiased
from parts.norms import RMSNorm
from parts.positions import POSITIONS, RoPE


class Latent(nn.Module):
    """Keys and values of all heads are read from one latent vector per symbol (DeepSeek-V2, arXiv:2405.04434).

    A rotation cannot be folded into the matrices that read the latent, so places are told by a part of their own:
    each query has `rotated` numbers more, and one rotated key of that size serves all heads. Queries are read from
    a latent of their own where `query_width` says so. Width rule: as many weights as multi-head attention.
    Raises UserError for a position that does not rotate, or a head size that 4 does not divide.
    """

    def __init__(self, c: ModelConfig, layer: int):
        super().__init__()
        self.n_head, self.head_size, self.value_size = c.n_head, c.head_size, c.value_width or c.head_size
        self.rotated = c.rotated or c.head_size // 2
        if not issubclass(lookup(POSITIONS, c.position, "model.position"), RoPE):
            raise UserError(f"model.position={c.position}: model.attention=mla rotates a key of its own. Allowed: rope")
        if self.rotated % 2:
            sizes = f"model.d_model={c.d_model} / model.n_head={c.n_head}"
            raise UserError(f"model.attention=mla rotates half as many numbers as a head has: 4 must divide {sizes}")
        self.latent = c.latent_width or c.d_model // 2 - c.head_size // 6
        require_unbiased(c, "qkv", "model.attention=mla")
        self.rope = RoPE(c, self.rotated).of(layer)
        size, eps = self.head_size + self.rotated, c.latent_eps or c.norm_eps
        self.query = Query(c, size, eps) if c.query_width else Linear(c.d_model, c.n_head * size)
        self.stretch = stretch(c, size)
        self.compress = Linear(c.d_model, self.latent + self.rotated)
        self.norm = RMSNorm(self.latent, eps)
        self.read_key = Linear(self.latent, c.n_head * self.head_size)
        self.read_value = Linear(self.latent, c.n_head * self.value_size)
        self.out = Linear(c.n_head * self.value_size, c.d_model, writes=True)
        self.dropout = Dropout(c.dropout)

    def forward(self, x, position):
        return position.form(self.unfolded, self.folded)(x, position)

    def unfolded(self, x, position):
        q, q_rotated, latent, k_rotated = self.parts(x, position)
        k, v = self.heads(self.read_key(latent)), self.heads(self.read_value(latent))
        k = torch.cat([k, k_rotated.expand(*k.shape[:-1], -1)], dim=-1)
        y = attend(torch.cat([q, q_rotated], dim=-1), k, v, self.dropout)
        return self.out(y.transpose(1, 2).flatten(2))

    def folded(self, x, position):
        """The same from the latent alone: what reads keys goes into the query, what reads values behind the sum.

        One key (latent and rotated part) and one value (the latent) serve all heads: the form of generation.
        """
        q, q_rotated, latent, k_rotated = self.parts(x, position)
        read_key, read_value = (m.weight.unflatten(0, (self.n_head, -1)) for m in (self.read_key, self.read_value))
        q = torch.cat([q @ read_key, q_rotated], dim=-1)
        q = q * (q.shape[-1] / (self.head_size + self.rotated)) ** 0.5  # `attend` divides by the size that it sees
        (k,) = position.remember("latent", torch.cat([latent.unsqueeze(1), k_rotated], dim=-1))
        y = attend(q, k, k[..., : self.latent], self.dropout) @ read_value.mT
        return self.out(y.transpose(1, 2).flatten(2))

    def parts(self, x, position):
        """Queries (B, heads, T, head size) and their rotated part, latent (B, T, latent), key (B, 1, T, rotated)."""
        q, q_rotated = self.heads(self.stretch(self.query(x))).split([self.head_size, self.rotated], dim=-1)
        latent, k_rotated = self.compress(x).split([self.latent, self.rotated], dim=-1)
        q_rotated, k_rotated = (self.rope.rotate(part, position.start) for part in (q_rotated, k_rotated.unsqueeze(1)))
        return q, q_rotated, self.norm(latent), k_rotated

    def heads(self, x):
        return x.unflatten(-1, (self.n_head, -1)).transpose(1, 2)

    def flops(self, T: int) -> int:
        return 2 * T * self.n_head * (self.head_size + self.rotated + self.value_size)

    def kv_numbers(self, T: int) -> int:
        return self.latent + self.rotated


class Query(nn.Module):
    """Queries of all heads, `size` numbers each, read from a normalized latent of their own."""

    def __init__(self, c: ModelConfig, size: int, eps: float):
        super().__init__()
        self.compress = Linear(c.d_model, c.query_width)
        self.norm = RMSNorm(c.query_width, eps)
        self.read = Linear(c.query_width, c.n_head * size)

    def forward(self, x):
        return self.read(self.norm(self.compress(x)))


ATTENTIONS = {"mla": Latent}
