"""The norm seam. Every norm is built as `Norm(width, eps)` and keeps the shape (..., width)."""

import torch
from torch import nn

from config import ModelConfig, lookup


class RMSNorm(nn.Module):
    """x / rms(x) * gain: no mean, no shift (Zhang & Sennrich 2019, arXiv:1910.07467)."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        x32 = x.float()  # a mean of squares needs more than bf16's 8 bits
        return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.gain


class LayerNorm(nn.LayerNorm):
    """(x - mean) / sd * gain + shift: a bias more per norm (Ba et al. 2016, arXiv:1607.06450)."""

    def __init__(self, width: int, eps: float):
        super().__init__(width, eps=eps)


class AllHeads(nn.Module):
    """One norm over the numbers of all heads together (OLMo 2, arXiv:2501.00656): (B, heads, T, head size) kept."""

    def __init__(self, norm: type, n_head: int, size: int, eps: float):
        super().__init__()
        self.norm = norm(n_head * size, eps)

    def forward(self, x):
        return self.norm(x.transpose(1, 2).flatten(2)).unflatten(-1, (x.shape[1], -1)).transpose(1, 2)


def each_head(norm: type, n_head: int, size: int, eps: float) -> nn.Module:
    return norm(size, eps)


def head_norm(c: ModelConfig, n_head: int) -> nn.Module:
    """What `qk_norm` does to queries or keys of n_head heads."""
    norm = lookup(NORMS, c.qk_norm, "model.qk_norm")
    span = each_head if norm is nn.Identity else lookup(SPANS, c.qk_norm_over, "model.qk_norm_over")
    return span(norm, n_head, c.head_size, c.norm_eps)


NORMS = {"rmsnorm": RMSNorm, "layernorm": LayerNorm, "none": nn.Identity}
SPANS = {"head": each_head, "heads": AllHeads}
