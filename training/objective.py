"""What a training step minimizes."""

from collections import defaultdict

import torch
from torch import Tensor, nn

import gpt
from config import TrainConfig


class Objective(nn.Module):
    """A model together with its training loss, so that both compile, and stack over seeds, as one."""

    def __init__(self, model: gpt.GPT, c: TrainConfig):
        super().__init__()
        self.model, self.ahead_weight = model, c.ahead_weight

    def forward(self, ids, targets) -> dict:
        """`total` is minimized; the rest, `loss` in nats per symbol among it, is for the row of metrics."""
        states = self.model.states(ids)
        loss = gpt.loss(self.model.unembed(states), targets)
        ahead = self.look_ahead(states, targets)
        extra, statistics = collect(self.model, "extra_losses"), collect(self.model, "statistics")
        added = [self.ahead_weight / len(ahead) * value for value in ahead]
        total = sum([*added, *(value for values in extra.values() for value in values)], loss)
        row = {name: torch.stack(values).mean().detach() for name, values in (extra | statistics).items()}
        row |= {f"loss_{step}_ahead": value.detach() for step, value in enumerate(ahead, 1)}
        return {"total": total, "loss": loss.detach(), **row}

    def look_ahead(self, states, targets) -> list[Tensor]:
        """Each head's nats per symbol for the symbol that many places behind the next."""
        losses = []
        for step, head in enumerate(self.model.ahead, 1):
            # What wraps around is seen only by the last places, which the loss leaves out.
            known = self.model.embedding(targets.roll(1 - step, -1))
            states = head(states, known, self.model.position)
            losses.append(gpt.loss(self.model.unembed(states)[..., :-step, :], targets[..., step:]))
        return losses


def collect(model: nn.Module, attribute: str) -> dict[str, list[Tensor]]:
    """What the modules left under this attribute during the forward pass, by name; it is taken from them."""
    found = defaultdict(list)
    for module in model.modules():
        for name, value in getattr(module, attribute, {}).items():
            found[name].append(value)
        if hasattr(module, attribute):
            setattr(module, attribute, {})
    return dict(found)


class AfterStep(nn.Module):
    """Called, it moves the state of a model that follows each update without a gradient, such as a router's bias."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.moving = [module for module in model.modules() if hasattr(module, "after_step")]

    def forward(self) -> None:
        for module in self.moving:
            module.after_step()
