"""Dropout, the one place where training draws random numbers.

The draws come from torch's default generator, which serves nothing else: train.py seeds it anew for
each step from (seed, step). Batches, initial weights and sampling have generators of their own.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Dropout(nn.Module):
    """Zeroes each number with probability p, scales the rest by 1 / (1 - p) (Srivastava et al. 2014)."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        return x * keep_mask(x.shape, self.p).to(x.dtype).div_(1 - self.p)


def keep_mask(shape, p: float):
    """Boolean CPU mask, True with probability 1 - p to within 2^-16.

    torch's own Bernoulli draws one number per element; four 16-bit numbers out of each 64-bit
    draw take a third of the time.
    """
    n = shape.numel()
    draws = torch.empty(-(-n // 4), dtype=torch.int64).random_(-(2**63), None)
    return (draws.view(torch.int16)[:n] >= round(p * 2**16) - 2**15).view(shape)
