"""The attention seam. Every attention is built as `Attention(model_config, layer)` and maps (B, T, D) to (B, T, D).

`flops(T)` is the forward cost per symbol of what is not a weight; `kv_numbers(T)` is how many numbers
generation must keep per symbol of a text of T symbols in this layer.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from config import ModelConfig, UserError, lookup
from parts.dropout import Dropout
from parts.linear import Linear, biased
from parts.norms import head_norm
from parts.softcap import softcap


def attend(q, k, v, dropout: Dropout, *, mask=None, cap=None, sinks=None):
    """Causal softmax attention over (B, heads, T, head size): the one score path.

    k and v may have fewer heads, each of which serves a group of query heads that stand together, and for a single
    query more symbols, S, of which it is the last.
    mask: (..., T, S), the keys that each query may see, at least one, in place of all past ones.
    cap: soft bound on scores. sinks: (heads,) logits that take part in the softmax and have no value.

    On a GPU torch's fused kernel, where it knows the case; on a CPU plain matrix products, which compute
    the same and are half again as fast there, backward pass included.
    """
    if q.device.type == "cpu" or cap is not None or sinks is not None:
        return plain(q, k, v, dropout, mask, cap, sinks)
    return fused(q, k, v, dropout, mask)


def fused(q, k, v, dropout: Dropout, mask=None):
    p, shared = dropout.p if dropout.training else 0.0, k.shape[1] != q.shape[1]
    causal = mask is None and q.shape[-2] > 1  # a single query is the last symbol: it sees all
    return F.scaled_dot_product_attention(q, k, v, mask, p, is_causal=causal, enable_gqa=shared)


def plain(q, k, v, dropout: Dropout, mask=None, cap=None, sinks=None):
    by_group = (*k.shape[:2], -1, q.shape[-1])  # a group's queries, one head after the other, as one longer text
    scores = (q * q.shape[-1] ** -0.5).reshape(by_group) @ k.mT
    scores = softcap(scores, cap).view(*q.shape[:-1], -1)  # (B, heads, T, S)
    if mask is None:
        hidden = torch.full(scores.shape[-2:], float("-inf"), dtype=q.dtype, device=q.device)
        hidden = hidden.triu(1 + scores.shape[-1] - scores.shape[-2])
    else:
        hidden = torch.where(mask, q.new_zeros(()), q.new_full((), float("-inf")))
    scores = scores + hidden
    if sinks is not None:
        scores = torch.cat([scores, sinks.view(-1, 1, 1).expand(*q.shape[:-1], 1)], dim=-1)
    weights = dropout(scores.softmax(-1)[..., : k.shape[-2]].to(v.dtype))
    return (weights.reshape(*k.shape[:2], -1, k.shape[-2]) @ v).view(*q.shape[:-1], -1)


def near(T: int, window: int | None, device, S: int | None = None):
    """The mask of a sliding window (T, S): the last `window` symbols, a query's own among them; None: no mask.

    S, null for T, is the number of symbols of which the queries are the last.
    """
    if window is None:
        return None
    before = (S or T) - T
    return torch.ones(T, before + T, dtype=torch.bool, device=device).tril(before).triu(before + 1 - window)


def short(c: ModelConfig) -> int:
    """Raises UserError for a window that hides nothing."""
    window = max(1, c.context // 4) if c.window is None else c.window
    if window >= c.context:
        raise UserError(f"model.window={window}: hides nothing of model.context={c.context}")
    return window


def tiled(pattern: Sequence, layer: int, c: ModelConfig, key: str):
    """The entry of a pattern that is repeated over the layers.

    Raises UserError where the model has too few layers to show each entry.
    """
    if not 0 < len(pattern) <= c.n_layer:
        shown = ",".join(pattern) if isinstance(pattern, list) else pattern
        raise UserError(f"{key}={shown}: a pattern of {len(pattern)} does not fit into model.n_layer={c.n_layer}")
    return pattern[layer % len(pattern)]


WINDOWS = {"S": short, "L": lambda c: None}  # a letter of model.windows -> symbols that a layer sees


class Stretch(nn.Module):
    """Queries times a factor, so that scores have a scale of their own."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, q):
        return self.factor * q


def stretch(c: ModelConfig, size: int) -> nn.Module:
    """What makes of `attend`'s own scale, one over the root of a query's `size`, that of the configuration."""
    return nn.Identity() if c.score_scale is None else Stretch(c.score_scale * size**0.5)


class Heads(nn.Module):
    """Queries, keys and values from one projection, and the way back to the stream."""

    def __init__(self, c: ModelConfig, n_kv_head: int):
        super().__init__()
        self.size, self.n_head, self.n_kv_head, self.width = c.head_size, c.n_head, n_kv_head, c.n_head * c.head_size
        self.widths = [n * c.head_size for n in (c.n_head, n_kv_head, n_kv_head)]
        self.qkv = Linear(c.d_model, sum(self.widths), bias=biased(c, "qkv"))
        self.q_norm, self.k_norm = head_norm(c, c.n_head), head_norm(c, n_kv_head)
        self.stretch = stretch(c, c.head_size)
        self.out = Linear(self.width, c.d_model, writes=True, bias=biased(c, "out"))
        self.dropout = Dropout(c.dropout)

    def heads(self, x, position):
        """x (B, T, D) -> q and k, normalized and rotated, and v, each (B, its heads, T, head size)."""
        parts = self.qkv(x).split(self.widths, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in parts)
        return position.rotate(self.stretch(self.q_norm(q))), position.rotate(self.k_norm(k)), v

    def join(self, y):
        """y (B, heads, T, head size) -> (B, T, D)."""
        return self.out(y.transpose(1, 2).flatten(2))


class MultiHead(Heads):
    """Every head has a query, key and value of its own (Vaswani et al. 2017, arXiv:1706.03762).

    Or shares key and value with its group: Shazeer 2019, arXiv:1911.02150; Ainslie et al. 2023, arXiv:2305.13245.
    Raises UserError where the heads cannot be grouped, and for a letter of `windows` that is none.
    """

    def __init__(self, c: ModelConfig, layer: int):
        n_kv_head = c.n_kv_head or c.n_head
        if c.n_head % n_kv_head:
            allowed = ", ".join(str(n) for n in range(1, c.n_head + 1) if c.n_head % n == 0)
            raise UserError(f"model.n_kv_head={c.n_kv_head}: must divide model.n_head={c.n_head}. Allowed: {allowed}")
        super().__init__(c, n_kv_head)
        self.window = lookup(WINDOWS, tiled(c.windows, layer, c, "model.windows"), "model.windows")(c)
        self.cap = c.score_softcap
        self.sinks = nn.Parameter(torch.zeros(c.n_head)) if c.sinks else None

    def forward(self, x, position):
        q, k, v = self.heads(x, position)
        k, v = position.remember("heads", k, v, window=self.window)
        mask = near(q.shape[2], self.window, x.device, k.shape[2])
        return self.join(attend(q, k, v, self.dropout, mask=mask, cap=self.cap, sinks=self.sinks))

    def flops(self, T: int) -> int:
        return 2 * 2 * T * self.width  # scores, then the weighted sum of values

    def kv_numbers(self, T: int) -> float:
        seen = min(self.window or T, T)  # of a longer text, what has left the window is let go
        return 2 * self.n_kv_head * self.size * seen / T


ATTENTIONS = {"mha": MultiHead}
