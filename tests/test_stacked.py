"""A training step is the same compiled, and for several models at once that are stacked over seeds."""

import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap

from config import ModelConfig, TrainConfig
from conftest import NEEDS, SWAPS
from gpt import GPT
from training.objective import Objective, collect

V = 50
COMPILED = [  # few, since compiling takes many seconds
    {"attention": "delta,ssm", "mlp": "moe"},
    {"attention": "dsa,nsa", "mlp": "moe_shared", "router": "sigmoid", "sparse_keys": 4},
]


@pytest.mark.parametrize("swap", SWAPS)
def test_models_stacked_over_seeds_equal_each_alone(swap, freeze):
    """Losses and statistics of modules are collected inside the same call; state that moves stays apart."""
    c = freeze(f"swap={swap}", *NEEDS.get(swap, []), "model.dropout=0").config  # masks are each seed's own
    objectives = [Objective(GPT(c.model, V).init(seed), c.train) for seed in (0, 1)]
    ids, targets = torch.randint(V, (2, 2, 4, c.model.context))
    parameters, buffers = stack_module_state(objectives)
    stacked = vmap(lambda p, b, x, y: functional_call(objectives[0], (p, b), (x, y)))(parameters, buffers, ids, targets)
    gradients = torch.autograd.grad(stacked["total"].sum(), list(parameters.values()))
    for seed, objective in enumerate(objectives):
        row = objective(ids[seed], targets[seed])
        alone = torch.autograd.grad(row["total"], [p for _, p in objective.named_parameters()])
        for name, value in row.items():
            assert torch.allclose(stacked[name][seed], value, atol=1e-5), name
        for name, buffer in objective.named_buffers():
            assert torch.allclose(buffers[name][seed], buffer), name
        for name, mine, other in zip(parameters, gradients, alone, strict=True):
            assert torch.allclose(mine[seed], other, atol=1e-5), name


@pytest.mark.parametrize("knobs", COMPILED, ids=str)
def test_a_compiled_step_equals_the_plain_one(knobs):
    model = GPT(ModelConfig(n_layer=2, n_head=2, d_model=24, context=16, **knobs), 20).init(0)
    ids, targets = torch.randint(20, (2, 4, 16))
    objective, found = Objective(model, TrainConfig()), []
    for step in (objective, torch.compile(objective)):
        for _ in range(2):  # the second time it meets what the first left behind
            model.zero_grad()
            row = step(ids, targets)
            row["total"].backward()
        found.append([*row.values(), *(p.grad.clone() for p in model.parameters())])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*found, strict=True))
    assert not collect(model, "extra_losses") and not collect(model, "statistics")
