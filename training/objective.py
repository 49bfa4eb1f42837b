"""What a training step minimizes."""

from collections import defaultdict

import torch
from torch import Tensor, nn

import gpt
from config import TrainConfig


class Objective(nn.Module):
    """A model together with its training loss, so that both compile, and stack over seeds, as one.

    A module of the model may add to it: `extra_losses`, a dict of weighted scalars set in its forward pass, is
    minimized, too; `statistics`, another, is reported alone.
    """

    def __init__(self, model: gpt.GPT, c: TrainConfig):
        super().__init__()
        self.model, self.ahead_weight = model, c.ahead_weight
        self.terms = {name: (getattr(c, name), term) for name, term in TERMS.items() if getattr(c, name)}

    def forward(self, ids, targets) -> dict:
        """`total` is minimized; the rest, `loss` in nats per symbol among it, is for the row of metrics."""
        states = self.model.states(ids)
        logits = self.model.unembed(states)
        loss = gpt.loss(logits, targets)
        ahead = self.look_ahead(states, targets)
        extra, statistics = collect(self.model, "extra_losses"), collect(self.model, "statistics")
        extra |= {name: [weight * term(logits.float(), targets)] for name, (weight, term) in self.terms.items()}
        added = [self.ahead_weight / len(ahead) * value for value in ahead]
        total = sum([*added, *(value for values in extra.values() for value in values)], loss)
        row = {name: torch.stack(values).mean().detach() for name, values in (extra | statistics).items()}
        row |= {f"loss_{step}_ahead": value.detach() for step, value in enumerate(ahead, 1)}
        return {"total": total, "loss": loss.detach(), **row}

    def look_ahead(self, states, targets) -> list[Tensor]:
        """Each head's nats per symbol for the symbol that many places behind the next."""
        losses, layers = [], len(self.model.blocks)
        for step, head in enumerate(self.model.ahead, 1):
            # What wraps around is seen only by the last places, which the loss leaves out.
            known = self.model.embedding(targets.roll(1 - step, -1))
            states = head(states, known, self.model.position.of(layers + step - 1))
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


def z_loss(logits, targets):
    """Squared log of the softmax's normalizer (PaLM, arXiv:2204.02311, section 5)."""
    return logits.logsumexp(-1).square().mean()


def label_smoothing(logits, targets):
    """What cross entropy gains where a share of the target is spread over all symbols, for a share of 1.

    Szegedy et al. 2015, arXiv:1512.00567. Both entropies have the same normalizer, so it is a difference of logits.
    """
    return (logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - logits.mean(-1)).mean()


TERMS = {"z_loss": z_loss, "label_smoothing": label_smoothing}  # weight in TrainConfig -> what it weighs
