"""Optimizers and schedules: who moves what, by how much."""

import copy
import itertools

import pytest
import torch

import gpt
from config import ModelConfig, TrainConfig, UserError
from training import optim

V = 50


@pytest.fixture
def model():
    return gpt.GPT(ModelConfig(n_layer=2, n_head=2, d_model=48, context=16), V).init(0)


def learn(model, optimizer, steps=1):
    for step in range(steps):
        ids = torch.randint(V, (4, 17), generator=torch.Generator().manual_seed(step))
        gpt.loss(model(ids[:, :-1]), ids[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_each_parameter_in_exactly_one_group_and_only_matrices_decay(name, model):
    made = optim.OPTIMIZERS[name](model, TrainConfig(weight_decay=0.1))
    held = [(p, group["weight_decay"]) for group in made.param_groups for p in group["params"]]
    assert sorted(id(p) for p, _ in held) == sorted(map(id, model.parameters()))
    assert all(decay == (0.1 if p.ndim >= 2 else 0) for p, decay in held)


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_every_parameter_moves_and_none_at_rate_zero(name, model):
    made = optim.OPTIMIZERS[name](model, TrainConfig())
    before = [p.detach().clone() for p in model.parameters()]
    for group in made.param_groups:
        group["lr"] = 0.0
    learn(model, made)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    for group in made.param_groups:
        group["lr"] = 1e-3
    learn(model, made)
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_muon_takes_the_matrices_of_the_blocks_and_nothing_else(model):
    muon, _ = optim.muon(model, TrainConfig()).parts
    taken = {id(p) for group in muon.param_groups for p in group["params"]}
    inside = {id(m.weight) for m in model.blocks.modules() if isinstance(m, torch.nn.Linear)}
    assert isinstance(muon, torch.optim.Muon) and taken == inside


def test_a_muon_update_is_near_orthogonal_and_as_large_as_one_of_adamw(model):
    lr = 1e-3
    weight = model.blocks[0].mlp.down.weight  # wide: its rows become orthogonal
    before = weight.detach().clone()
    learn(model, optim.muon(model, TrainConfig(lr=lr, weight_decay=0)))
    update = weight.detach() - before
    assert update.square().mean().sqrt().item() == pytest.approx(0.2 * lr, rel=0.25)  # what AdamW's have, by the paper
    singular = torch.linalg.svdvals(update)
    assert singular.max() / singular.median() < 2


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_goes_on_from_its_state_with_the_same_bits(name, model):
    c = TrainConfig()
    made = optim.OPTIMIZERS[name](model, c)
    learn(model, made, 2)
    twin = gpt.GPT(ModelConfig(n_layer=2, n_head=2, d_model=48, context=16), V)
    twin.load_state_dict(model.state_dict())
    resumed = optim.OPTIMIZERS[name](twin, c)
    resumed.load_state_dict(copy.deepcopy(made.state_dict()))
    learn(model, made)
    learn(twin, resumed)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_linear_falls_from_the_peak_to_zero_after_the_last_step():
    c = TrainConfig(lr=0.5, schedule="linear", steps=10, warmup=2)
    rates = [optim.rate(step, c) for step in range(10)]
    assert rates[:3] == [0.25, 0.5, 0.5] and optim.rate(10, c) == 0
    falls = [a - b for a, b in itertools.pairwise(rates[2:])]
    assert falls == pytest.approx([0.5 / 8] * 7)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_a_later_horizon_is_a_longer_runs_schedule_cut_short(name):
    long = TrainConfig(lr=0.5, schedule=name, steps=40, warmup=2)
    cut, matched = (TrainConfig(lr=0.5, schedule=name, steps=10, warmup=2, horizon=end) for end in (40, None))
    rates = [[optim.rate(step, c) for step in range(10)] for c in (cut, matched)]
    assert rates[0] == [optim.rate(step, long) for step in range(10)]
    assert all(late > early for late, early in zip(*(its[3:] for its in rates), strict=True))
    assert optim.rate(10, matched) == pytest.approx({"cosine": 0.05, "linear": 0}[name])


def test_a_horizon_is_refused_where_nothing_reads_it():
    optim.require_schedule(TrainConfig(schedule="linear", horizon=900))
    with pytest.raises(UserError, match=r"train.horizon=900: train.schedule=constant"):
        optim.require_schedule(TrainConfig(horizon=900))
    with pytest.raises(UserError, match=r"train.schedule=cosin: unknown, did you mean cosine"):
        optim.require_schedule(TrainConfig(schedule="cosin"))
