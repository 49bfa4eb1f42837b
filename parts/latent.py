"""Multi-head latent attention: what generation keeps of a symbol is one narrow vector, shared by all heads."""

import torch
from torch import nn

from config import ModelConfig, UserError, lookup
from parts.attention import attend
from parts.dropout import Dropout
from parts.linear import Linear, require_unbiased
from parts.norms import RMSNorm
from parts.positions import POSITIONS, RoPE


class Latent(nn.Module):
    """Keys and values of all heads are read from one latent vector per symbol (DeepSeek-V2, arXiv:2405.04434).

    A rotation cannot be folded into the matrices that read the latent, so places are told by a part of their own:
    each query has `rotated` numbers more, and one rotated key of that size serves all heads. Queries are not
    compressed, as in DeepSeek-V2-Lite. Width rule: as many weights as multi-head attention.
    Raises UserError for a position that does not rotate, or a head size that 4 does not divide.
    """

    def __init__(self, c: ModelConfig, layer: int):
        super().__init__()
        self.n_head, self.head_size, self.rotated = c.n_head, c.head_size, c.head_size // 2
        if not issubclass(lookup(POSITIONS, c.position, "model.position"), RoPE):
            raise UserError(f"model.position={c.position}: model.attention=mla rotates a key of its own. Allowed: rope")
        if c.head_size % 4:
            sizes = f"model.d_model={c.d_model} / model.n_head={c.n_head}"
            raise UserError(f"model.attention=mla rotates half as many numbers as a head has: 4 must divide {sizes}")
        self.latent = c.latent_width or c.d_model // 2 - c.head_size // 6
        require_unbiased(c, "qkv", "model.attention=mla")
        self.rope = RoPE(c, self.rotated).of(layer)
        self.query = Linear(c.d_model, c.n_head * (self.head_size + self.rotated))
        self.compress = Linear(c.d_model, self.latent + self.rotated)
        self.norm = RMSNorm(self.latent, c.norm_eps)
        self.read_key = Linear(self.latent, c.d_model)
        self.read_value = Linear(self.latent, c.d_model)
        self.out = Linear(c.d_model, c.d_model, writes=True)
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
        readers = (self.n_head, self.head_size, self.latent)
        q = torch.cat([q @ self.read_key.weight.view(readers), q_rotated], dim=-1)
        q = q * (q.shape[-1] / (self.head_size + self.rotated)) ** 0.5  # `attend` divides by the size that it sees
        (k,) = position.remember("latent", torch.cat([latent.unsqueeze(1), k_rotated], dim=-1))
        y = attend(q, k, k[..., : self.latent], self.dropout) @ self.read_value.weight.view(readers).mT
        return self.out(y.transpose(1, 2).flatten(2))

    def parts(self, x, position):
        """Queries (B, heads, T, head size) and their rotated part, latent (B, T, latent), key (B, 1, T, rotated)."""
        q, q_rotated = self.heads(self.query(x)).split([self.head_size, self.rotated], dim=-1)
        latent, k_rotated = self.compress(x).split([self.latent, self.rotated], dim=-1)
        q_rotated, k_rotated = (self.rope.rotate(part, position.start) for part in (q_rotated, k_rotated.unsqueeze(1)))
        return q, q_rotated, self.norm(latent), k_rotated

    def heads(self, x):
        return x.unflatten(-1, (self.n_head, -1)).transpose(1, 2)

    def flops(self, T: int) -> int:
        return 2 * T * self.n_head * (2 * self.head_size + self.rotated)

    def kv_numbers(self, T: int) -> int:
        return self.latent + self.rotated


ATTENTIONS = {"mla": Latent}
