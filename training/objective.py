"""What a training step minimizes."""

from torch import nn

import gpt
from config import TrainConfig


class Objective(nn.Module):
    """A model together with its training loss, so that both compile, and stack over seeds, as one."""

    def __init__(self, model: gpt.GPT, c: TrainConfig):
        super().__init__()
        self.model = model

    def forward(self, ids, targets) -> dict:
        """`total` is minimized; the rest, `loss` in nats per symbol among it, is for the row of metrics."""
        loss = gpt.loss(self.model(ids), targets)
        return {"total": loss, "loss": loss.detach()}
