"""Optimizers and learning-rate schedules: the same for every variant unless a swap says otherwise."""

import math
from collections.abc import Callable

import torch
from torch import nn

from config import TrainConfig


def groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Every parameter in exactly one group: matrices decay; gains and biases do not.

    `parameters()` yields a tied table once.
    """
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def adamw(model: nn.Module, c: TrainConfig) -> torch.optim.Optimizer:
    """Loshchilov & Hutter 2017, arXiv:1711.05101."""
    return torch.optim.AdamW(groups(model, c.weight_decay), lr=c.lr, betas=(c.beta1, c.beta2), fused=True)


OPTIMIZERS: dict[str, Callable] = {"adamw": adamw}


def constant(step: int, c: TrainConfig) -> float:
    return 1.0


def cosine(step: int, c: TrainConfig) -> float:
    """Half a cosine from the end of warm-up to a tenth of the peak at the last step."""
    done = (step - c.warmup) / max(1, c.steps - c.warmup)
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))


SCHEDULES: dict[str, Callable[[int, TrainConfig], float]] = {"constant": constant, "cosine": cosine}


def rate(step: int, c: TrainConfig) -> float:
    """The learning rate of the update that follows `step` updates."""
    if step < c.warmup:
        return c.lr * (step + 1) / c.warmup
    return c.lr * SCHEDULES[c.schedule](step, c)
