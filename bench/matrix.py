"""How fast this machine multiplies the model's own matrices: what a perfect training loop could reach."""

import torch
from torch.utils.benchmark import Timer

from config import Precision
from training.machine import Machine

SECONDS = 0.1


def flops(rows: int, inner: int, columns: int) -> int:
    """Of (rows, inner) @ (inner, columns): a multiplication and an addition each."""
    return 2 * rows * inner * columns


def rate(tokens: int, width: int, machine: Machine) -> float:
    """FLOPs per second of (tokens, D) @ (D, 4 D), the MLP's first product: the best of several, in the precision of
    the training."""
    dtype = torch.bfloat16 if machine.precision is Precision.bf16 else torch.float32
    a = torch.randn(tokens, width, device=machine.device, dtype=dtype)
    b = torch.randn(width, 4 * width, device=machine.device, dtype=dtype)
    timer = Timer("a @ b", globals={"a": a, "b": b}, num_threads=machine.threads)
    return flops(tokens, width, 4 * width) / min(timer.blocked_autorange(min_run_time=SECONDS).times)
