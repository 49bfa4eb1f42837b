"""Device, precision and compiler change how fast a step is, not what it computes. DEVICE=cuda asks a GPU."""

import pytest
import torch
from torch.nn import functional as F

import gpt
from config import MachineConfig, Precision
from conftest import DEVICE
from parts.attention import attend
from parts.dropout import Dropout
from text import corpus
from training.learner import Learner
from training.machine import has_bf16, settle

TOLERANCE = {Precision.fp32: 1e-5, Precision.bf16: 2e-2}  # of the largest number in each tensor


@pytest.fixture
def learner(freeze):
    """learner("model.dropout=0.2", ...) at smoke scale on the device under test."""

    def make(*overrides, device=DEVICE, precision=Precision.fp32, compile=False):
        if precision is Precision.bf16 and not has_bf16(torch.device(device)):
            pytest.skip(f"{device} has no bf16")
        config = freeze(*overrides).config
        machine = settle(MachineConfig(device=device, precision=precision, compile=compile))
        return Learner([config], machine, corpus.load(config.text))

    return make


def step(learner: Learner, number: int = 0) -> list[torch.Tensor]:
    """Loss and every gradient of one step, on the CPU."""
    inputs, targets = learner.batch(number)
    torch.manual_seed(gpt.stream(0, "dropout", number))
    with learner.machine.autocast():
        found = learner.objective(inputs, targets)
    found["total"].backward()
    gradients = [p.grad.detach().cpu().clone() for p in learner.model.parameters()]
    learner.optimizer.zero_grad()
    return [found["loss"].float().cpu(), *gradients]


def require_equal(mine, other, tolerance):
    for a, b in zip(mine, other, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=tolerance * float(b.detach().abs().max()))


@pytest.mark.parametrize("swap", ["baseline", "gelu", "layernorm", "postnorm", "learned"])
def test_a_step_on_the_device_equals_one_on_the_cpu(learner, swap):
    require_equal(step(learner(f"swap={swap}")), step(learner(f"swap={swap}", device="cpu")), 1e-4)


@pytest.mark.parametrize("precision", list(TOLERANCE))
def test_a_compiled_step_equals_the_plain_one(learner, precision):
    """On a CPU dropout included: the compiler must not let two layers share a mask, or draw another for the backward
    pass. On a GPU it draws by its own rule."""
    dropout = f"model.dropout={0.2 if DEVICE == 'cpu' else 0}"
    plain, compiled = (learner(dropout, precision=precision, compile=compile) for compile in (False, True))
    for number in range(3):  # a CUDA graph is recorded in the second and replayed in the third
        require_equal(step(compiled, number), step(plain, number), TOLERANCE[precision])


@pytest.mark.parametrize("compile", [False, True])
def test_what_a_step_draws_depends_on_its_number_alone(learner, compile):
    mine = learner("model.dropout=0.3", compile=compile)
    first, second, again = step(mine, 4), step(mine, 5), step(mine, 4)
    assert first[0] == again[0] and first[0] != second[0]
    require_equal(first, again, 1e-6)


def test_bf16_moves_the_loss_by_less_than_a_hundredth(learner):
    exact, fast = step(learner()), step(learner(precision=Precision.bf16))
    assert 0 < abs(float(exact[0] - fast[0])) < 0.01


def test_plain_attention_equals_the_fused_kernel_in_loss_and_gradient():
    q, k, v = (torch.randn(2, 3, 16, 8, device=DEVICE, requires_grad=True) for _ in range(3))
    weight = torch.randn(2, 3, 16, 8, device=DEVICE)
    found = []
    for y in (attend(q, k, v, Dropout(0.0)), F.scaled_dot_product_attention(q, k, v, is_causal=True)):
        found.append([y, *torch.autograd.grad((y * weight).sum(), (q, k, v))])
    require_equal(*found, 1e-5)


def test_dropout_on_the_device_keeps_the_stated_share():
    torch.manual_seed(0)
    n, p = 4_000_000, 0.2
    kept = (Dropout(p)(torch.ones(n, device=DEVICE)) > 0).float().mean().item()
    assert kept == pytest.approx(1 - p, abs=5 * (p * (1 - p) / n) ** 0.5)


def test_batches_are_the_same_on_every_device(learner):
    mine, other = learner(), learner(device="cpu")
    assert all(torch.equal(a.cpu(), b) for a, b in zip(mine.batch(3), other.batch(3), strict=True))


def test_a_resumed_learner_goes_on_as_if_it_had_not_stopped(learner):
    mine = learner("model.dropout=0.2")
    mine.update(0)
    other = learner("model.dropout=0.2")
    other.load([mine.state(0)])
    require_equal(step(mine, 1), step(other, 1), 1e-6)
