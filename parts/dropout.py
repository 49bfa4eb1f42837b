"""Dropout, the one place where training draws random numbers.

The draws follow torch's default generator, which serves nothing else: train.py seeds it anew for each
step from (seed, step). Batches, initial weights and sampling have generators of their own.
"""

import numpy as np
import torch
from torch import Tensor, nn
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
        return x * keep(x.detach(), self.p)


# Opaque to the compiler, which would draw number by number. It takes x and not its shape: two calls with equal
# arguments are one to the compiler, and two layers would share a mask.
@torch.library.custom_op("oneswap::keep", mutates_args=(), tags=[torch.Tag.nondeterministic_seeded])
def keep(x: Tensor, p: float) -> Tensor:
    """A CPU mask in the shape and type of x: 1 / (1 - p) with probability 1 - p to within 2^-16, else 0.

    torch's own Bernoulli draws one number per element; four 16-bit numbers out of each 64-bit draw of a
    generator of its own (SFC64, seeded from torch's) take a sixth of the time.
    """
    generator = np.random.SFC64(int(torch.randint(2**62, ())))
    draws = torch.from_numpy(generator.random_raw(-(-x.numel() // 4)).view(np.int16))[: x.numel()]
    mask = torch.ge(draws, round(p * 2**16) - 2**15, out=torch.empty(x.numel(), dtype=x.dtype))
    return mask.div_(1 - p).view(x.shape)


@keep.register_fake
def _(x, p):
    return torch.empty(x.shape, dtype=x.dtype)


@keep.register_vmap
def _(info, in_dims, x, p):
    """Seeds that train side by side draw masks of their own."""
    return keep(x.movedim(in_dims[0], 0), p), 0
