"""Pieces with a known answer."""

import pytest
import torch
from torch.nn import functional as F

from config import MachineConfig, ModelConfig, Precision, TrainConfig, UserError, from_plain
from gpt import GPT, stream
from limits import check
from parts.dropout import Dropout, keep
from parts.norms import NORMS
from training import machine, optim


def test_norms_of_three_and_four():
    x = torch.tensor([3.0, 4.0])
    assert NORMS["layernorm"](2, 0.0)(x).tolist() == pytest.approx([-1, 1])
    assert NORMS["rmsnorm"](2, 0.0)(x).tolist() == pytest.approx([0.8485, 1.1314], abs=1e-4)


def test_rmsnorm_is_torch_own():
    x, norm = torch.randn(4, 7, 12), NORMS["rmsnorm"](12, 1e-5)
    norm.gain.data.normal_()
    assert torch.allclose(norm(x), F.rms_norm(x, (12,), norm.gain, 1e-5), atol=1e-6)


@pytest.mark.parametrize("p", [0.1, 0.2, 0.5])
def test_dropout_has_the_stated_probability_and_keeps_the_mean(p):
    torch.manual_seed(0)
    n = 4_000_000
    kept = (keep(torch.empty(n), p) > 0).float()
    assert kept.mean().item() == pytest.approx(1 - p, abs=5 * (p * (1 - p) / n) ** 0.5)
    neighbours = (kept[1:] * kept[:-1]).mean().item()
    assert neighbours == pytest.approx((1 - p) ** 2, abs=5 / n**0.5)
    assert Dropout(p)(torch.ones(n)).mean().item() == pytest.approx(1, abs=0.005)


def test_dropout_is_off_in_evaluation_and_follows_the_seed():
    layer, x = Dropout(0.5), torch.ones(1000)
    torch.manual_seed(1)
    first = layer(x)
    torch.manual_seed(1)
    assert torch.equal(first, layer(x)) and not torch.equal(first, layer(x))
    assert torch.equal(layer.eval()(x), x)


def test_streams_differ_by_seed_and_name():
    seeds = {stream(seed, name, step) for seed in (0, 1) for name in ("init", "dropout") for step in (0, 1)}
    assert len(seeds) == 8 and all(0 <= s < 2**63 for s in seeds)


def test_schedules():
    c = TrainConfig(steps=100, lr=1.0, warmup=10, schedule="cosine")
    rates = [optim.rate(step, c) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == pytest.approx(1.0) == pytest.approx(rates[10])
    assert rates[10:] == sorted(rates[10:], reverse=True) and 0.1 < rates[-1] < 0.11
    assert {optim.rate(step, TrainConfig(steps=100, lr=0.5)) for step in (0, 50, 99)} == {0.5}


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("model", "mlp", "swigluu"), ("model", "norm", "rms"), ("model", "wiring", "x"), ("model", "position", "x"),
        ("model", "attention", "x"), ("model", "n_head", 5), ("model", "d_model", 36),
    ],
)  # fmt: skip
def test_a_network_that_cannot_be_is_refused_by_name(section, key, value):
    with pytest.raises(UserError, match=str(value)):
        GPT(ModelConfig(**{**{"n_head": 4, "d_model": 48}, key: value}), 10)


@pytest.mark.parametrize(
    "wrong",
    [
        {"train": {"steps": -1}}, {"train": {"lr": 0}}, {"train": {"lr": float("nan")}}, {"model": {"dropout": 1.0}},
        {"model": {"n_layer": 0}}, {"eval": {"stride": 500}}, {"train": {"warmup": 10_000}}, {"seed": -1},
        {"train": {"checkpoints": [-5]}}, {"machine": {"threads": 0}},
    ],
)  # fmt: skip
def test_numbers_outside_their_range_are_refused_by_name(wrong):
    section, inner = next(iter(wrong.items()))
    key = f"{section}.{next(iter(inner))}" if isinstance(inner, dict) else section
    with pytest.raises(UserError, match=key):
        check(from_plain(wrong))


def test_a_machine_without_the_device_says_so():
    with pytest.raises(UserError, match="warp"):
        machine.settle(MachineConfig(device="warp9"))
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="cuda"):
            machine.settle(MachineConfig(device="cuda"))


def test_auto_precision_follows_the_processor():
    assert machine.settle(MachineConfig(device="cpu", threads=1)).precision is (
        Precision.bf16 if machine.has_bf16(torch.device("cpu")) else Precision.fp32
    )
