"""Latent attention: folded for generation it is the same, and it knows what it cannot do."""

import pytest
import torch

from config import ModelConfig, UserError
from gpt import GPT
from parts.latent import Latent
from parts.positions import RoPE
from training import cost

CONFIG = ModelConfig(n_head=4, d_model=96, context=32)


def test_folded_equals_unfolded_in_output_and_gradient():
    torch.manual_seed(0)
    latent = Latent(CONFIG, 0).double()
    for p in latent.parameters():
        torch.nn.init.normal_(p, std=0.3)
    x = torch.randn(2, 32, 96, dtype=torch.double, requires_grad=True)
    found = []
    for forward in (latent, latent.folded):
        y = forward(x, RoPE(CONFIG))
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, *latent.parameters()])])
    assert found[0][0].std() > 0.1
    for a, b in zip(*found, strict=True):  # the norm rounds to float32, on the way back, too
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-6 * a.abs().max().item())


def test_only_the_rotated_part_tells_places_apart():
    """Without it, the last symbol's output does not depend on the order of those before; with it, it does."""
    torch.manual_seed(0)
    latent = Latent(CONFIG, 0)
    for p in latent.parameters():
        torch.nn.init.normal_(p, std=0.3)
    x = torch.randn(1, 32, 96)
    mixed, rope = torch.cat([x[:, torch.randperm(31)], x[:, 31:]], dim=1), RoPE(CONFIG)
    assert not torch.allclose(latent(x, rope)[:, -1], latent(mixed, rope)[:, -1], atol=1e-2)
    latent.query.weight.data.view(4, 36, 96)[:, 24:] = 0
    assert torch.allclose(latent(x, rope)[:, -1], latent(mixed, rope)[:, -1], atol=1e-4)


def test_the_cache_holds_the_latent_and_one_rotated_key():
    model = GPT(ModelConfig(attention="mla", n_layer=3), 10)
    assert cost.cost(model, 128).kv_bytes_per_token == 2 * 3 * (44 + 12)
    wider = GPT(ModelConfig(attention="mla", n_layer=3, latent_width=60), 10)
    assert cost.cost(wider, 128).kv_bytes_per_token == 2 * 3 * (60 + 12)


@pytest.mark.parametrize("wrong", [{"position": "learned"}, {"n_head": 16}])
def test_what_latent_attention_cannot_do_is_told_by_name(wrong):
    with pytest.raises(UserError, match=f"model.{next(iter(wrong))}=.*"):
        GPT(ModelConfig(attention="mla", **wrong), 10)
