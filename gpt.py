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
from parts.depth import DepthAttention, Latest, kept
from parts.dropout import Dropout
from parts.linear import Embedding, biased
from parts.norms import NORMS
from parts.positions import POSITIONS
from parts.softcap import softcap

ATTENTIONS = attention.ATTENTIONS | latent.ATTENTIONS | recurrent.ATTENTIONS | sparse.ATTENTIONS
MLPS = mlps.MLPS | experts.MLPS


class Block(nn.Module):
    """Two branches, attention and MLP. A wiring says where the norms stand and how branches meet the stream."""

    norms = ("attention_norm", "mlp_norm")

    def __init__(self, c: ModelConfig, layer: int):
        super().__init__()
        kind = attention.tiled([name.strip() for name in c.attention.split(",")], layer, c, "model.attention")
        self.attention = lookup(ATTENTIONS, kind, "model.attention")(c, layer)
        self.mlp = lookup(MLPS, c.mlp, "model.mlp")(c) if layer >= c.first_dense else mlps.SwiGLU(c, c.dense_width)
        for name in self.norms:
            self.add_module(name, make_norm(c))
        self.dropout = Dropout(c.dropout)

    @staticmethod
    def begin(x):
        """The stream that the first block gets, from the embedded input (B, T, D)."""
        return x

    @staticmethod
    def end(c: ModelConfig) -> nn.Module:
        """What reads the stream after the last block."""
        return make_norm(c)


class PreNorm(Block):
    """The stream itself is never normalized, so a final norm is needed (Xiong et al. 2020, arXiv:2002.04745)."""

    def forward(self, x, position):
        x = x + self.dropout(self.attention(self.attention_norm(x), position))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class PostNorm(Block):
    """Each sum is normalized, as in 2017 (Vaswani et al. 2017, arXiv:1706.03762); the last norm is the final one."""

    @staticmethod
    def end(c):
        return nn.Identity()

    def forward(self, x, position):
        x = self.attention_norm(x + self.dropout(self.attention(x, position)))
        return self.mlp_norm(x + self.dropout(self.mlp(x)))


class Sandwich(Block):
    """A norm before each branch and one behind it, the stream left alone (Gemma 2, arXiv:2408.00118)."""

    norms = ("attention_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm")

    def forward(self, x, position):
        x = x + self.dropout(self.attention_out_norm(self.attention(self.attention_norm(x), position)))
        return x + self.dropout(self.mlp_out_norm(self.mlp(self.mlp_norm(x))))


class OutputNorm(Block):
    """A norm behind each branch alone, the stream left alone (OLMo 2, arXiv:2501.00656)."""

    def forward(self, x, position):
        x = x + self.dropout(self.attention_norm(self.attention(x, position)))
        return x + self.dropout(self.mlp_norm(self.mlp(x)))


class Parallel(Block):
    """Both branches read the same norm and write at once (GPT-J, 2021; PaLM, arXiv:2204.02311)."""

    norms = ("norm",)

    def forward(self, x, position):
        y = self.norm(x)
        return x + self.dropout(self.attention(y, position)) + self.dropout(self.mlp(y))


class ParallelTwoNorms(Block):
    """As parallel, with a norm for each branch (GPT-NeoX, arXiv:2204.06745)."""

    def forward(self, x, position):
        y = self.dropout(self.attention(self.attention_norm(x), position))
        return x + y + self.dropout(self.mlp(self.mlp_norm(x)))


class AttentionResiduals(Block):
    """No sum: the stream is all outputs so far, and each branch chooses what it reads (arXiv:2603.15031)."""

    def __init__(self, c: ModelConfig, layer: int):
        super().__init__(c, layer)
        self.attention_mix = DepthAttention(c.d_model, c.norm_eps) if layer else Latest()
        self.mlp_mix = DepthAttention(c.d_model, c.norm_eps)

    @staticmethod
    def begin(x):
        return (kept(x),)

    @staticmethod
    def end(c):
        return nn.Sequential(DepthAttention(c.d_model, c.norm_eps), make_norm(c))

    def forward(self, outputs, position):
        y = self.attention(self.attention_norm(self.attention_mix(outputs)), position)
        outputs = (*outputs, kept(self.dropout(y)))
        return (*outputs, kept(self.dropout(self.mlp(self.mlp_norm(self.mlp_mix(outputs))))))


WIRINGS = {
    "prenorm": PreNorm,
    "postnorm": PostNorm,
    "sandwich": Sandwich,
    "output_norm": OutputNorm,
    "parallel": Parallel,
    "parallel_two_norms": ParallelTwoNorms,
    "attention_residuals": AttentionResiduals,
}


def make_norm(c: ModelConfig) -> nn.Module:
    return lookup(NORMS, c.norm, "model.norm")(c.d_model, c.norm_eps)


class GPT(nn.Module):
    """Causal language model: symbols (B, T) in, logits (B, T, V) of the next symbol out.

    Raises UserError for a name that no part has, or sizes that do not fit together.
    """

    def __init__(self, c: ModelConfig, vocab_size: int):
        super().__init__()
        wiring = lookup(WIRINGS, c.wiring, "model.wiring")
        self.context, self.begin, self.cap = c.context, wiring.begin, c.logit_softcap
        self.embedding = Embedding(vocab_size, c.d_model, c.d_model**c.embedding_power)
        self.position = lookup(POSITIONS, c.position, "model.position")(c)
        self.dropout = Dropout(c.dropout)
        self.blocks = nn.ModuleList(wiring(c, layer) for layer in range(c.n_layer))
        self.final_norm = wiring.end(c)
        self.unembedding = None if c.tied else Embedding(vocab_size, c.d_model)
        self.logit_bias = nn.Parameter(torch.zeros(vocab_size)) if biased(c, "logits") else None
        self.ahead = nn.ModuleList(  # for the objective alone
            Ahead(c.d_model, wiring(c, c.n_layer + step), make_norm(c), make_norm(c), wiring.end(c))
            for step in range(c.predict_ahead)
        )

    @property
    def writer(self) -> Embedding:
        """The table that writes the logits: tied, it is the one that reads the symbols."""
        return self.unembedding or self.embedding

    def forward(self, ids):
        return self.unembed(self.states(ids))

    def states(self, ids, position=None):
        """(B, T, D), which `unembed` reads. `position`: a parts.memory.Memory, in generation."""
        position = position or self.position
        stream = self.begin(self.dropout(position.embed(self.embedding(ids))))  # (B, T, D)
        for layer, block in enumerate(self.blocks):
            stream = block(stream, position.of(layer))
        return self.final_norm(stream)

    def unembed(self, states):
        return softcap(F.linear(states, self.writer.weight, self.logit_bias), self.cap)

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
