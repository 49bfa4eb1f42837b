"""Optimizers and learning-rate schedules: the same for every variant unless a swap says otherwise."""

import math
from collections.abc import Callable

import torch
from torch import nn

from config import TrainConfig, UserError, lookup
from gpt import GPT
from training.cost import Watched


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


class Together:
    """Several optimizers as one; each parameter belongs to exactly one of them."""

    def __init__(self, *parts: torch.optim.Optimizer):
        self.parts = parts

    @property
    def param_groups(self) -> list[dict]:
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def state_dict(self) -> list[dict]:
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict]) -> None:
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def muon(model: GPT, c: TrainConfig) -> Together:
    """Muon for the matrices inside the blocks (Jordan et al. 2024), AdamW for tables, gains and biases.

    A Muon update is scaled to the size of an AdamW update (Liu et al. 2025, arXiv:2502.16982), so one learning
    rate and one weight decay serve both; beta1 is the momentum of both.
    """
    inner = [p for p in model.blocks.parameters() if p.ndim == 2]
    chosen = set(inner)
    outer = [
        {**group, "params": [p for p in group["params"] if p not in chosen]} for group in groups(model, c.weight_decay)
    ]
    return Together(
        torch.optim.Muon(inner, lr=c.lr, weight_decay=c.weight_decay, momentum=c.beta1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, lr=c.lr, betas=(c.beta1, c.beta2), fused=True),
    )


OPTIMIZERS: dict[str, Callable] = {"adamw": adamw, "muon": muon}


def constant(step: int, c: TrainConfig) -> float:
    return 1.0


def cosine(step: int, c: TrainConfig) -> float:
    """Half a cosine from the end of warm-up to a tenth of the peak at the last step."""
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * fallen(step, c)))


def linear(step: int, c: TrainConfig) -> float:
    """A straight line from the end of warm-up to zero after the last step (Bergsma et al. 2025, arXiv:2502.15938)."""
    return 1 - fallen(step, c)


def fallen(step: int, c: TrainConfig) -> float:
    """Share of the way down that is done: 0 at the end of warm-up, 1 at the horizon, or the end without one."""
    end = c.steps if c.horizon is None else c.horizon
    return (step - c.warmup) / max(1, end - c.warmup)


SCHEDULES: dict[str, Callable[[int, TrainConfig], float]] = {"constant": constant, "cosine": cosine, "linear": linear}


def require_schedule(c: TrainConfig) -> None:
    """Raises UserError for an unknown schedule, or a horizon that the schedule does not read."""
    watched = Watched(c)
    lookup(SCHEDULES, c.schedule, "train.schedule")(c.warmup, watched)
    if c.horizon is not None and "horizon" not in watched.read:
        raise UserError(f"train.horizon={c.horizon}: train.schedule={c.schedule} does not read it; leave it at null")


def rate(step: int, c: TrainConfig) -> float:
    """The learning rate of the update that follows `step` updates."""
    if step < c.warmup:
        return c.lr * (step + 1) / c.warmup
    return c.lr * SCHEDULES[c.schedule](step, c)
