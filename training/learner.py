"""What learns: a model, its optimizer, and one update of it. Several seeds side by side: packed.py."""

import torch
from torch import Tensor, nn

import gpt
from config import Config, lookup
from text import corpus
from text.corpus import Corpus
from training import evaluate, optim
from training.machine import Machine
from training.objective import AfterStep, Objective


class Learner:
    """The model of one seed. Lists hold a value for each seed, here one: a pack has the same methods."""

    def __init__(self, configs: list[Config], machine: Machine, text: Corpus):
        self.configs, self.config, self.machine, self.text = configs, configs[0], machine, text
        self.symbols = text.train.to(machine.device)
        self.build()

    def build(self) -> None:
        self.model = self.fresh(self.config)
        self.objective = self.machine.compiled(Objective(self.model, self.config.train))
        self.optimizer = self.optimizer_of(self.model)
        self.after_step = AfterStep(self.model)

    def fresh(self, config: Config) -> gpt.GPT:
        return gpt.GPT(config.model, self.text.vocab_size).init(config.seed).to(self.machine.device)

    def optimizer_of(self, model: gpt.GPT) -> torch.optim.Optimizer:
        make = lookup(optim.OPTIMIZERS, self.config.train.optimizer, "train.optimizer")
        return make(model, self.config.train)

    def update(self, step: int) -> list[dict]:
        """The update that follows `step` updates; a row of metrics for each seed, numbers still on the device.

        What it draws depends on (seed, step) alone: a resumed run needs no generator's state.
        """
        inputs, targets = self.batch(step)
        torch.manual_seed(gpt.stream(self.seed, "dropout", step))
        lr = optim.rate(step, self.config.train)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with self.machine.autocast():
            row = self.objective(inputs, targets)
        row.pop("total").sum().backward()
        norm = self.clip(self.config.train.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.after_step()
        return self.rows({**row, "grad_norm": norm, "lr": lr})

    @property
    def seed(self) -> int:
        return self.config.seed

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        return self.draw(self.config, step)

    def draw(self, config: Config, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (B, T) of one seed, on the device."""
        return corpus.batch(self.symbols, config.seed, step, config.train.batch_size, config.model.context)

    def clip(self, limit: float) -> Tensor:
        """Scales the gradient down to a norm of at most `limit`; returns the norm it had."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    def rows(self, row: dict) -> list[dict]:
        return [row]

    def dev_nats(self) -> list[float]:
        """Nats of the whole dev set."""
        return [evaluate.dev_nats(self.model, self.text, self.config, self.machine).item()]

    def weights(self, seed: int) -> dict[str, Tensor]:
        """Of the model of the seed at this place in the list."""
        return self.model.state_dict()

    def state(self, seed: int) -> dict:
        """What a resume point holds: the same alone and in a pack, so that a run may go on either way."""
        return {"model": self.weights(seed), "optimizer": self.optimizer.state_dict()}

    def load(self, states: list[dict]) -> None:
        """The inverse of `state`, for all seeds."""
        (state,) = states
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
