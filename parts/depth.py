"""Attention over depth: a branch reads a mix of what every branch before it wrote."""

import torch
from torch import nn


class DepthAttention(nn.Module):
    """Softmax-weighted sum of earlier outputs; a score is a learned query times the RMS-normed output.

    Kimi Team 2026, arXiv:2603.15031, the full form. The query starts at 0, so the mix starts as the plain mean.
    The norm has no gain of its own: it would only multiply the query.
    """

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, outputs):
        """What `kept` gave for each output so far, the embedding first -> (B, T, D)."""
        values, squares = (torch.stack(part) for part in zip(*outputs, strict=True))  # (outputs, B, T, D) and (.., T)
        weights = ((values * self.query).sum(-1) * torch.rsqrt(squares + self.eps)).softmax(0)
        return (weights.unsqueeze(-1) * values).sum(0)


class Latest(nn.Module):
    """The newest output alone: all that there is before the first branch has written."""

    def forward(self, outputs):
        return outputs[-1][0]


def kept(x):
    """An output (B, T, D) with its mean square (B, T), which every later branch needs."""
    x = x.float()
    return x, x.square().mean(-1)
