"""The norm seam. Every norm is built as `Norm(width, eps)` and keeps the shape (..., width)."""

import torch
from torch import nn


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


NORMS = {"rmsnorm": RMSNorm, "layernorm": LayerNorm, "none": nn.Identity}
