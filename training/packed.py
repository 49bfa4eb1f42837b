"""Several seeds of one variant as one stacked model: a GPU that one tiny model leaves idle trains them together.

The seeds share each kernel's launch and nothing else: batches, masks, gradient norms, optimizer states and
not-a-numbers stay in their own slices. gpt.py and parts/ know nothing of it.
"""

import copy

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from config import Config
from training import evaluate
from training.learner import Learner
from training.objective import AfterStep, Objective

PACKABLE = ("adamw",)  # optimizers that treat each number by itself, so that slices cannot mix
SHARED = "step"  # of an optimizer's state of one parameter: the count of updates, the same for all seeds


def can_pack(config: Config) -> bool:
    """Whether seeds of this variant may train as one stacked model."""
    return config.train.optimizer in PACKABLE


class Pack(Learner):
    """The models of S seeds, S at least 2. Every tensor of weights, gradients and moments is (S, ...)."""

    def build(self) -> None:
        models = [self.fresh(config) for config in self.configs]
        self.stacked, self.buffers = stack_module_state(models)
        self.model = copy.deepcopy(models[0]).to("meta")  # the computation, without weights
        self.template = Objective(self.model, self.config.train)
        self.objective = self.machine.compiled(self.losses)
        self.shorten = self.machine.compiled(clip)
        moving = AfterStep(self.model)
        self.after_step = lambda: functional_call(moving, inside(self.buffers), ())
        self.optimizer = self.optimizer_of(models[0])
        mine = {id(p): self.stacked[name] for name, p in models[0].named_parameters()}
        for group in self.optimizer.param_groups:  # grouped by what one model's parameters are
            group["params"] = [mine[id(p)] for p in group["params"]]

    def losses(self, inputs: Tensor, targets: Tensor) -> dict:
        """(S, B, T) symbols in, the objective's values as (S,) each."""

        def one(weights, buffers, inputs, targets):
            return functional_call(self.template, inside(weights | buffers), (inputs, targets))

        return vmap(one, randomness="different")(self.stacked, self.buffers, inputs, targets)

    def logits(self, inputs: Tensor) -> Tensor:
        """(B, T) symbols, the same for each seed, in; logits (S, B, T, V) out."""

        def one(weights, buffers):
            return functional_call(self.model, weights | buffers, (inputs,))

        return vmap(one)(self.stacked, self.buffers)

    @property
    def seed(self) -> tuple[int, ...]:
        return tuple(config.seed for config in self.configs)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = zip(*(self.draw(config, step) for config in self.configs), strict=True)
        return torch.stack(inputs), torch.stack(targets)

    def clip(self, limit: float) -> Tensor:
        return self.shorten([p.grad for p in self.stacked.values()], limit)

    def rows(self, row: dict) -> list[dict]:
        seeds = range(len(self.configs))
        return [{key: value[i] if isinstance(value, Tensor) else value for key, value in row.items()} for i in seeds]

    def dev_nats(self) -> list[float]:
        return evaluate.dev_nats(self.model, self.text, self.config, self.machine, self.logits).tolist()

    def weights(self, seed: int) -> dict[str, Tensor]:
        kept = self.model.state_dict().keys()  # buffers that can be computed are not saved
        return {name: value[seed].clone() for name, value in (self.stacked | self.buffers).items() if name in kept}

    def state(self, seed: int) -> dict:
        whole = self.optimizer.state_dict()
        moments = {
            p: {key: value if key == SHARED else value[seed].clone() for key, value in state.items()}
            for p, state in whole["state"].items()
        }
        return {"model": self.weights(seed), "optimizer": {**whole, "state": moments}}

    def load(self, states: list[dict]) -> None:
        with torch.no_grad():
            for name, value in (self.stacked | self.buffers).items():
                if name in states[0]["model"]:
                    value.copy_(torch.stack([state["model"][name] for state in states]))
        first, *others = [state["optimizer"] for state in states]
        moments = {
            p: {
                key: value if key == SHARED else torch.stack([value, *(o["state"][p][key] for o in others)])
                for key, value in state.items()
            }
            for p, state in first["state"].items()
        }
        self.optimizer.load_state_dict({**first, "state": moments})


def inside(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """By the names that a model's tensors have where it is the `model` of another module."""
    return {f"model.{name}": value for name, value in tensors.items()}


def clip(gradients: list[Tensor], limit: float) -> Tensor:
    """Scales each seed's gradient down to a norm of at most `limit`, as `clip_grad_norm_` does; returns norms (S,)."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
    scale = (limit / (norms + 1e-6)).clamp(max=1)
    for g in gradients:
        g.mul_(scale.view(-1, *[1] * (g.ndim - 1)))
    return norms
