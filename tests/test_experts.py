"""Mixtures of experts: exact, dropless, balanced."""

import pytest
import torch
from torch.nn import functional as F

from config import ModelConfig, UserError
from gpt import GPT
from parts.experts import Experts, SharedExperts, evenness, shares
from training import cost
from training.objective import AfterStep

SMALL = {"n_layer": 2, "n_head": 2, "d_model": 24, "context": 16}


def mixture(kind=Experts, **knobs):
    torch.manual_seed(0)
    moe = kind(ModelConfig(**{**SMALL, **knobs}))
    for p in moe.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return moe


def by_hand(moe, x):
    """Symbol by symbol, expert by expert."""
    chosen, gates = moe.router(x)
    y = torch.zeros_like(x)
    for n in range(len(x)):
        for expert, gate in zip(chosen[n], gates[n], strict=True):
            left, right = (x[n] @ moe.gate_up.weight[expert]).chunk(2)
            y[n] += gate * ((F.silu(left) * right) @ moe.down.weight[expert])
    return y


@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 16), (5, 7)])
def test_a_mixture_is_what_it_is_by_hand(router, shape):
    moe, x = mixture(router=router), torch.randn(*shape, 24)
    assert torch.allclose(moe(x).flatten(0, 1), by_hand(moe, x.flatten(0, 1)), atol=1e-4)


def test_no_symbol_is_dropped_when_all_choose_the_same():
    moe, x = mixture(router="sigmoid"), torch.randn(4, 16, 24)
    moe.router.bias[:2] = 100
    assert torch.allclose(moe(x).flatten(0, 1), by_hand(moe, x.flatten(0, 1)), atol=1e-4)
    assert moe.router.statistics["router_load"] == pytest.approx(4)  # 2 of 8 experts have it all
    assert moe.router.statistics["router_entropy"] == pytest.approx(1 / 3)


def test_gates_of_the_chosen_are_largest_and_add_up_to_one():
    moe, x = mixture(), torch.randn(40, 24)
    chosen, gates = moe.router(x)
    p = moe.router.scores(x).softmax(-1)
    assert torch.allclose(gates.sum(-1), torch.ones(40))
    others = p.scatter(-1, chosen, 0)
    assert (p.gather(-1, chosen).min(-1).values >= others.max(-1).values).all()


def test_the_shared_expert_sees_every_symbol():
    moe, x = mixture(SharedExperts), torch.randn(2, 5, 24)
    assert torch.allclose(moe(x) - moe.shared(x), Experts.forward(moe, x), atol=1e-5)


def test_statistics_of_an_even_load():
    even = torch.arange(8).view(4, 2)
    found = evenness(shares(even, 8))
    assert found["router_load"] == pytest.approx(1) and found["router_entropy"] == pytest.approx(1)


def test_the_balance_loss_is_its_weight_at_an_even_load_and_more_at_an_uneven_one():
    moe = mixture(balance_weight=0.5)
    moe.router.scores.weight.data.zero_()
    moe.router(torch.randn(40, 24))
    assert moe.router.extra_losses["balance"].item() == pytest.approx(0.5)  # even probabilities, whatever the choice
    moe.router.scores.weight.data[0] = 1
    moe.router(torch.rand(40, 24))
    assert moe.router.extra_losses["balance"] > 0.6


def test_the_bias_moves_against_the_load_in_training_alone():
    moe = mixture(router="sigmoid", bias_rate=0.25)
    AfterStep(moe)()
    assert not moe.router.bias.any()
    moe.eval()(torch.randn(9, 24))
    assert not moe.router.load.any()
    moe.train().router.bias[:2] = 100
    moe(torch.randn(9, 24))
    AfterStep(moe)()
    assert moe.router.bias.tolist() == [99.75] * 2 + [0.25] * 6 and not moe.router.load.any()


def test_the_bias_has_no_part_in_the_gates():
    moe, x = mixture(router="sigmoid"), torch.randn(9, 24)
    chosen, gates = moe.router(x)
    moe.router.bias += 3.0
    assert all(torch.equal(a, b) for a, b in zip((chosen, gates), moe.router(x), strict=True))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"top_k": 9}, "model.top_k=9: must be from 2 to model.n_experts=8"),
        ({"top_k": 1}, "model.top_k=1: must be from 2"),
        ({"n_experts": 1}, "model.n_experts=1"),
        ({"router": "softmx"}, "did you mean softmax"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused_by_name(wrong, told):
    with pytest.raises(UserError, match=told):
        GPT(ModelConfig(**SMALL, mlp="moe", **wrong), 10)


@pytest.mark.parametrize("mlp", ["moe", "moe_shared"])
def test_a_symbol_passes_through_the_baselines_weights_and_the_router(mlp):
    mine, base = (cost.of_config(ModelConfig(mlp=kind), 50) for kind in (mlp, "swiglu"))
    routers = 4 * 96 * 8
    assert mine.active - routers == pytest.approx(base.active, rel=0.01)
    assert mine.total > 2 * base.total and mine.kv_bytes_per_token == base.kv_bytes_per_token
