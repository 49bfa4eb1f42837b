"""Attention over few keys, chosen by the model, for the attention seam.

At this size the choice is an exact mask over all scores, so speed and FLOPs are those of full attention and more;
what is faithful is which keys a query sees. Both keep all keys and values: they save products, not cache.
"""

import torch
from torch import nn
from torch.nn import functional as F

from config import ModelConfig, UserError
from parts.attention import Heads, attend, near
from parts.linear import Linear


class TopKeys(Heads):
    """Each query sees the `sparse_keys` past keys that an indexer scores highest (DeepSeek-V3.2, arXiv:2512.02556).

    All heads share the choice. No gradient passes through it, so the indexer learns to predict: its scores' softmax
    over the chosen keys follows the attention weights there, averaged over heads, by a Kullback-Leibler
    divergence that moves the indexer alone. That is the paper's sparse stage, here from the first step;
    its dense warm-up, its latent attention and its 8-bit scores are left out.
    """

    def __init__(self, c: ModelConfig, layer: int):
        super().__init__(c, c.n_head)
        self.keys = c.sparse_keys
        self.indexer = Indexer(c)

    def forward(self, x, position):
        q, k, v = self.heads(x, position)
        k, v = position.remember("heads", k, v)
        scores = self.indexer(x.detach(), position)
        seen = top_keys(scores, self.keys)
        if self.training:
            weights = attention_weights(q.detach(), k.detach(), seen.unsqueeze(1))
            self.extra_losses = {"indexer": divergence(weights, scores, seen)}
        return self.join(attend(q, k, v, self.dropout, mask=seen.unsqueeze(1)))

    def flops(self, T: int) -> int:
        """As computed: all scores.

        A product counts thrice, forward and back: the weights that the indexer follows need the first alone, and
        its matrices two, since no gradient goes to their input.
        """
        scores = T * (2 * self.width + self.width / 3 + self.indexer.n_head * self.size)
        return round(2 * (scores - sum(m.weight.numel() for m in self.indexer.children() if isinstance(m, Linear)) / 3))

    def kv_numbers(self, T: int) -> int:
        return 2 * self.width + self.size  # and the indexer's key


class Indexer(nn.Module):
    """Sum over few heads of weight(query) * relu(query . key), one key for all heads: (B, T, D) -> scores (B, T, S)."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.n_head, self.head_size = c.index_heads, c.head_size
        self.query = Linear(c.d_model, c.index_heads * c.head_size)
        self.key = Linear(c.d_model, c.head_size)
        self.key_norm = nn.LayerNorm(c.head_size)
        self.weight = Linear(c.d_model, c.index_heads)

    def forward(self, x, position):
        q = position.rotate(self.query(x).unflatten(-1, (self.n_head, self.head_size)).transpose(1, 2))
        (k,) = position.remember("indexer", position.rotate(self.key_norm(self.key(x)).unsqueeze(1)))
        weight = self.weight(x).transpose(1, 2).unsqueeze(-1) * (self.n_head * self.head_size) ** -0.5
        return (weight * F.relu(q @ k.mT)).float().sum(1)


class ChosenBlocks(Heads):
    """Three views of the past, added with a gate per head: blocks in brief, a few blocks in full, and a near window.

    After native sparse attention (Yuan et al. 2025, arXiv:2502.11089): each block of keys and values is also kept as
    one; a query's weights over those say which blocks it sees in full: the first, its own, the one before, and the
    best of the rest, `sparse_blocks` together. Simpler than there: the three share keys and values, blocks do not
    overlap, and a block in brief is a learned weighted mean of its places, not an MLP.
    """

    def __init__(self, c: ModelConfig, layer: int):
        super().__init__(c, c.n_head)
        if c.sparse_blocks < 3:
            raise UserError(f"model.sparse_blocks={c.sparse_blocks}: must be at least 3, of which only one is chosen")
        self.block, self.blocks, self.window = c.sparse_block, c.sparse_blocks, c.sparse_window
        self.gates = Linear(c.d_model, 3 * c.n_head)
        self.brief = Brief(c.n_head, c.sparse_block)

    def forward(self, x, position):
        q, k, v = self.heads(x, position)
        k, v = position.remember("heads", k, v)
        start, end = position.start, k.shape[2]
        begun = start // self.block * self.block  # of the blocks that get new symbols, the first
        in_brief = self.brief(k[:, :, begun:], v[:, :, begun:])
        in_brief = position.remember("brief", *in_brief, every=self.block)
        place = torch.arange(start, end, device=x.device)
        in_brief, weights = self.overview(q, *in_brief, place)
        full = best_blocks(weights, place // self.block, self.blocks).repeat_interleave(self.block, -1)
        in_full = attend(q, k, v, self.dropout, mask=full[..., :end].tril(start))
        in_window = attend(q, k, v, self.dropout, mask=near(len(place), self.window, x.device, end))
        gates = self.gates(x).sigmoid().unflatten(-1, (3, self.n_head, 1)).permute(2, 0, 3, 1, 4)
        y = gates[0] * in_brief + gates[1] * in_full + gates[2] * in_window  # (B, heads, T, head size)
        return self.join(y)

    def overview(self, q, k, v, place):
        """Attention over the blocks that are over, 0 where none is, and its weights (B, heads, T, blocks)."""
        over = (place.unsqueeze(1) + 1) // self.block > torch.arange(k.shape[2], device=k.device)  # (T, blocks)
        some = over.any(-1, keepdim=True)
        weights = attention_weights(q, k, over | ~some)  # a softmax needs a key
        return self.dropout(weights.to(v.dtype)) @ v * some, weights.detach()

    def flops(self, T: int) -> int:
        """As computed: all scores, of the chosen blocks and of the window; a kernel would skip what is masked."""
        blocks = -(-T // self.block)
        return 2 * self.width * (4 * T + 2 * blocks)

    def kv_numbers(self, T: int) -> float:
        return 2 * self.width * (1 + 1 / self.block)


class Brief(nn.Module):
    """One key and one value per block: means over its places, with learned weights for each head."""

    def __init__(self, n_head: int, size: int):
        super().__init__()
        self.size, self.weight = size, nn.Parameter(torch.empty(2, n_head, size))

    def init(self, generator, n_layer: int) -> None:
        nn.init.zeros_(self.weight)  # plain means

    def forward(self, k, v):
        """(B, heads, T, head size) twice -> (B, heads, blocks, head size) twice."""
        pad = (0, 0, 0, -k.shape[2] % self.size)
        blocks = (F.pad(x, pad).unflatten(2, (-1, self.size)) for x in (k, v))
        weights = self.weight.softmax(-1).view(2, -1, 1, self.size, 1)
        return [(block * weight).sum(-2) for block, weight in zip(blocks, weights, strict=True)]


def top_keys(scores, count: int):
    """The `count` highest of each query's past keys: scores (B, T, S) of the last T symbols -> mask (B, T, S)."""
    past = torch.ones_like(scores, dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
    return highest(scores.masked_fill(~past, float("-inf")), count) & past


def best_blocks(weights, own, count: int):
    """The first block, a query's own, the one before and the best of the rest, `count` together.

    weights (B, heads, T, blocks), own block of each query (T,) -> mask (B, heads, T, blocks).
    """
    block, own = torch.arange(weights.shape[-1], device=weights.device), own.unsqueeze(1)
    always, past = (block == 0) | (block == own) | (block == own - 1), block <= own
    ranked = weights.masked_fill(always, float("inf")).masked_fill(~past, float("-inf"))
    return highest(ranked, count) & past


def highest(x, count: int):
    """The `count` highest of each row, the newest of equal ones: where topk leaves the choice to the row's length.

    Scores that rest on relu are often equal, and a choice that a longer text moves is not causal.
    """
    least = x.topk(min(count, x.shape[-1])).values[..., -1:]
    above, equal = x > least, x == least
    newer = equal.sum(-1, keepdim=True) - equal.cumsum(-1)
    return above | (equal & (newer < count - above.sum(-1, keepdim=True)))


def attention_weights(q, k, mask):
    """What `attend` weighs values with, before dropout: for a choice that rests on them, since a kernel keeps them."""
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    return scores.masked_fill(~mask, float("-inf")).softmax(-1).float()


def divergence(weights, scores, seen):
    """Mean over queries of KL(attention over heads || softmax of the scores), both over the keys that are seen.

    weights (B, heads, T, T), scores and seen (B, T, T).
    """
    p = weights.mean(1)
    q = scores.masked_fill(~seen, float("-inf")).log_softmax(-1).masked_fill(~seen, 0)
    return (torch.xlogy(p, p) - p * q).sum(-1).mean()


ATTENTIONS = {"dsa": TopKeys, "nsa": ChosenBlocks}
