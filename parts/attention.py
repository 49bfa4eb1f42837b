"""The attention seam. Every attention is built as `Attention(model_config, layer)` and maps (B, T, D) to (B, T, D).

`flops(T)` is the forward cost per symbol of what is not a weight; `kv_numbers(T)` is how many numbers
generation must keep per symbol of a text of T symbols in this layer.
"""

import torch
from torch import nn
from torch.nn import functional as F

from config import ModelConfig
from parts.dropout import Dropout
from parts.linear import Linear


def attend(q, k, v, dropout: Dropout, mask=None):
    """Causal softmax attention over (B, heads, T, head size): the one score path.

    `mask` (..., T, S): the keys that each query may see, at least one, in place of all past ones.
    On a GPU torch's fused kernel; on a CPU plain matrix products, which compute the same and are
    half again as fast there, backward pass included.
    """
    if q.device.type != "cpu":
        p = dropout.p if dropout.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, dropout_p=p)
    T = q.shape[-2]
    if mask is None:
        hidden = torch.full((T, T), float("-inf"), dtype=q.dtype).triu(1)
    else:
        hidden = torch.where(mask, q.new_zeros(()), q.new_full((), float("-inf")))
    scores = (q * q.shape[-1] ** -0.5) @ k.mT + hidden  # (B, heads, T, T)
    return dropout(scores.softmax(-1).to(v.dtype)) @ v


class MultiHead(nn.Module):
    """Every head has a query, key and value of its own (Vaswani et al. 2017, arXiv:1706.03762)."""

    def __init__(self, c: ModelConfig, layer: int):
        super().__init__()
        self.n_head, self.head_size, self.width = c.n_head, c.head_size, c.d_model
        self.qkv = Linear(c.d_model, 3 * c.d_model)
        self.out = Linear(c.d_model, c.d_model, writes=True)
        self.dropout = Dropout(c.dropout)

    def heads(self, x, position):
        """x (B, T, D) -> q and k, rotated, and v, each (B, heads, T, head size)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_head, self.head_size)).permute(2, 0, 3, 1, 4)
        return position.rotate(q), position.rotate(k), v

    def forward(self, x, position):
        y = attend(*self.heads(x, position), self.dropout)
        return self.out(y.transpose(1, 2).flatten(2))

    def flops(self, T: int) -> int:
        return 2 * 2 * T * self.width  # scores, then the weighted sum of values

    def kv_numbers(self, T: int) -> int:
        return 2 * self.width


ATTENTIONS = {"mha": MultiHead}
