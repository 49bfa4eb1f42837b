"""Layers with a state: in chunks they are the recurrence, step by step."""

import pytest
import torch

from config import ModelConfig, UserError
from gpt import GPT
from parts import recurrent
from parts.attention import MultiHead
from parts.positions import NoPosition
from parts.recurrent import Decay, GatedDelta, ShortConv, StateSpace, gated_delta, state_space


def step_by_step(q, k, v, write, log_decay):
    state, outputs = v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1]), []
    for t in range(q.shape[2]):
        state = state * log_decay[:, :, t, None, None].exp()
        known = (k[:, :, t, None] @ state).squeeze(2)
        state = state + k[:, :, t, :, None] * (write[:, :, t, None] * (v[:, :, t] - known))[:, :, None]
        outputs.append((q[:, :, t, None] @ state).squeeze(2))
    return torch.stack(outputs, dim=2)


def drawn(T, heads=3):
    """Queries, keys, values, write strengths and decays in float64, for gradients."""
    torch.manual_seed(T)
    q, k, v = (torch.randn(2, heads, T, size, dtype=torch.double, requires_grad=True) for size in (5, 5, 7))
    write, log_decay = torch.rand(2, 2, heads, T, dtype=torch.double)
    return q, k, v, write.requires_grad_(), (-log_decay).requires_grad_()


@pytest.mark.parametrize("T", [1, 16, 64, 128, 150])
def test_the_delta_rule_in_chunks_is_the_recurrence(T):
    q, k, v, write, log_decay = drawn(T)
    found = []
    for rule in (step_by_step, gated_delta):
        y = rule(q, torch.nn.functional.normalize(k, dim=-1), v, write, log_decay)
        found.append([y, *torch.autograd.grad(y.square().sum(), (q, k, v, write, log_decay))])
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(*found, strict=True))


def test_the_delta_rule_replaces_what_a_key_holds():
    """Written twice under one key without forgetting, the second value alone is read back."""
    key = torch.tensor([1.0, 0.0]).expand(1, 1, 2, 2)
    value = torch.tensor([[3.0], [5.0]]).view(1, 1, 2, 1)
    y = gated_delta(key, key, value, torch.ones(1, 1, 2), torch.zeros(1, 1, 2))
    assert y.flatten().tolist() == [3, 5]


def test_the_delta_rule_stays_finite_on_equal_keys_in_float32():
    """Where every symbol has one key, a series in place of a solved system loses all digits."""
    T = 2 * recurrent.CHUNK
    k = torch.nn.functional.normalize(torch.ones(1, 1, T, 8), dim=-1)
    v = torch.randn(1, 1, T, 4)
    y = gated_delta(k, k, v, torch.ones(1, 1, T), torch.zeros(1, 1, T))
    assert torch.allclose(y, v, atol=1e-4)


@pytest.mark.parametrize("T", [1, 16, 64, 128, 150])
def test_the_state_space_layer_in_chunks_is_the_recurrence(T):
    q, k, v, _, log_decay = drawn(T)
    q, k = q[:, :1], k[:, :1]
    found = []
    for rule in (one_by_one, state_space):
        y = rule(q, k, v, log_decay)
        found.append([y, *torch.autograd.grad(y.square().sum(), (q, k, v, log_decay))])
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(*found, strict=True))


def one_by_one(q, k, v, log_decay):
    state, outputs = 0, []
    for t in range(v.shape[2]):
        state = log_decay[:, :, t, None, None].exp() * state + k[:, :, t, :, None] * v[:, :, t, None]
        outputs.append((q[:, :, t, None] @ state).squeeze(2))
    return torch.stack(outputs, dim=2)


def test_the_short_convolution_is_torch_own():
    conv, x = ShortConv(6), torch.randn(2, 9, 6)
    torch.nn.init.normal_(conv.weight)
    whole = torch.nn.functional.conv1d(x.mT, conv.weight.mT.unsqueeze(1), padding=3, groups=6)[..., :9].mT
    assert torch.allclose(conv(x, NoPosition(ModelConfig())), torch.nn.functional.silu(whole), atol=1e-6)


def test_decays_start_at_the_published_rates_and_steps():
    decay = Decay(1000)
    decay.init(torch.Generator().manual_seed(0), 4)
    log_decay, step = decay(torch.zeros(1, 1000, 1))
    assert 0.001 <= step.min() < 0.0012 and 0.08 < step.max() <= 0.1001
    rate = -log_decay / step
    assert 1 <= rate.min() < 1.1 and 15.9 < rate.max() <= 16.01


@pytest.mark.parametrize("kind", [GatedDelta, StateSpace])
@pytest.mark.parametrize(("n_head", "d_model"), [(2, 48), (4, 96), (6, 144), (8, 512)])
def test_a_layer_has_the_weights_of_attention(kind, n_head, d_model):
    c = ModelConfig(n_head=n_head, d_model=d_model)
    mine, base = (sum(p.numel() for p in layer(c, 0).parameters()) for layer in (kind, MultiHead))
    assert mine == pytest.approx(base, rel=0.03)  # of a block, 1%


@pytest.mark.parametrize("kind", ["delta", "ssm"])
def test_the_cache_of_a_state_does_not_grow_with_the_text(kind):
    attention = recurrent.ATTENTIONS[kind](ModelConfig(), 0)
    held = [T * attention.kv_numbers(T) for T in (128, 4096)]
    assert held[0] == pytest.approx(held[1]) and held[0] < 128 * MultiHead(ModelConfig(), 0).kv_numbers(128)


def test_a_comma_list_is_tiled_over_the_layers():
    model = GPT(ModelConfig(n_layer=6, attention="delta,ssm, mha"), 10)
    assert [type(block.attention) for block in model.blocks] == [GatedDelta, StateSpace, MultiHead] * 2
    with pytest.raises(UserError, match=r"model.attention=dleta: unknown, did you mean delta"):
        GPT(ModelConfig(n_layer=2, attention="mha,dleta"), 10)
