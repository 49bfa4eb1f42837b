"""The skeleton nobody changed since GPT-2: an embedding, blocks on a residual stream, an unembedding.

What sits inside a block is chosen by name from parts/ when the model is built, never while it runs.
Shapes: B sequences, T symbols, D width, V symbols in the vocabulary.
"""

import hashlib

import torch
from torch import nn
from torch.nn import functional as F

from config import ModelConfig, lookup
from parts import attention, experts, latent, mlps, recurrent, sparse
from parts.ahead import Ahead
from parts.dropout import Dropout
from parts.linear import Embedding
from parts.norms import NORMS
from parts.positions import POSITIONS

ATTENTIONS = attention.ATTENTIONS | latent.ATTENTIONS | recurrent.ATTENTIONS | sparse.ATTENTIONS
MLPS = mlps.MLPS | experts.MLPS


class Block(nn.Module):
    """Two branches, attention and MLP, and a norm for each. A wiring says how they meet the stream."""

    def __init__(self, c: ModelConfig, layer: int):
        super().__init__()
        kinds = [lookup(ATTENTIONS, name.strip(), "model.attention") for name in c.attention.split(",")]
        self.attention = kinds[layer % len(kinds)](c, layer)
        self.mlp = lookup(MLPS, c.mlp, "model.mlp")(c)
        self.attention_norm, self.mlp_norm = make_norm(c), make_norm(c)
        self.dropout = Dropout(c.dropout)


class PreNorm(Block):
    """The stream itself is never normalized, so a final norm is needed (Xiong et al. 2020, arXiv:2002.04745)."""

    final_norm = True

    def forward(self, x, position):
        x = x + self.dropout(self.attention(self.attention_norm(x), position))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class PostNorm(Block):
    """Each sum is normalized, as in 2017 (Vaswani et al. 2017, arXiv:1706.03762); the last norm is the final one."""

    final_norm = False

    def forward(self, x, position):
        x = self.attention_norm(x + self.dropout(self.attention(x, position)))
        return self.mlp_norm(x + self.dropout(self.mlp(x)))


WIRINGS = {"prenorm": PreNorm, "postnorm": PostNorm}


def make_norm(c: ModelConfig) -> nn.Module:
    return lookup(NORMS, c.norm, "model.norm")(c.d_model, c.norm_eps)


class GPT(nn.Module):
    """Causal language model: symbols (B, T) in, logits (B, T, V) of the next symbol out.

    Raises UserError for a name that no part has, or sizes that do not fit together.
    """

    def __init__(self, c: ModelConfig, vocab_size: int):
        super().__init__()
        wiring = lookup(WIRINGS, c.wiring, "model.wiring")
        self.context = c.context
        self.embedding = Embedding(vocab_size, c.d_model)
        self.position = lookup(POSITIONS, c.position, "model.position")(c)
        self.dropout = Dropout(c.dropout)
        self.blocks = nn.ModuleList(wiring(c, layer) for layer in range(c.n_layer))
        self.final_norm = make_norm(c) if wiring.final_norm else nn.Identity()
        self.ahead = nn.ModuleList(  # for the objective alone
            Ahead(c.d_model, wiring(c, c.n_layer + step), [make_norm(c) for _ in range(3)])
            for step in range(c.predict_ahead)
        )

    def forward(self, ids):
        return self.unembed(self.states(ids))

    def states(self, ids):
        x = self.dropout(self.position.embed(self.embedding(ids)))  # (B, T, D)
        for block in self.blocks:
            x = block(x, self.position)
        return self.final_norm(x)

    def unembed(self, states):
        return F.linear(states, self.embedding.weight)  # tied: one table reads and writes

    def init(self, seed: int) -> "GPT":
        """Draw the initial weights. Each module has a generator seeded by (seed, its name), so that
        variants that share a module start it from the same numbers."""
        for name, module in self.named_modules():
            if hasattr(module, "init") and module is not self:
                module.init(torch.Generator().manual_seed(stream(seed, "init", name)), len(self.blocks))
        return self


def loss(logits, targets):
    """Mean nats per symbol, in float32 whatever the logits are in."""
    return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


def stream(seed: int, *name) -> int:
    """A 63-bit seed for one named stream of randomness of a run: streams never overlap."""
    digest = hashlib.sha256(repr((seed, *name)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
