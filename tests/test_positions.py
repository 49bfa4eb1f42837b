"""Where a symbol stands: rotations, their scalings, and waves."""

import math

import pytest
import torch

from config import ModelConfig
from gpt import GPT
from parts.positions import POSITIONS, RoPE, speeds, waves, yarn

C = ModelConfig(n_layer=4, n_head=1, d_model=8, context=32)


def model_config(**knobs) -> ModelConfig:
    return ModelConfig(**{"n_layer": 4, "n_head": 1, "d_model": 8, "context": 32, **knobs})


@pytest.mark.parametrize("T", [32, 64])
def test_rope_scores_depend_on_distance_alone(T):
    rope = RoPE(C)
    q, k = torch.randn(8), torch.randn(8)
    turned_q, turned_k = (rope.rotate(x.expand(1, 1, T, 8))[0, 0] for x in (q, k))
    scores = turned_q @ turned_k.T
    for distance in (0, 3, 9):
        along = scores.diagonal(-distance)
        assert torch.allclose(along, along[0].expand_as(along), atol=1e-4)
    assert not torch.allclose(scores[5, 2], scores[9, 2], atol=1e-3)


def test_every_fourth_layer_is_left_as_it_is():
    rope, x = RoPE(model_config(n_layer=8, nope_every=4)), torch.randn(1, 1, 32, 8)
    still = [torch.equal(rope.of(layer).rotate(x), x) for layer in range(8)]
    assert still == [False, False, False, True] * 2
    assert all(RoPE(C).of(layer).rotate(x) is not x for layer in range(4))


@pytest.mark.parametrize("scaling", ["linear", "yarn"])
def test_a_scaling_shows_beyond_the_context_alone(scaling):
    plain, scaled = RoPE(C), RoPE(model_config(rope_scaling=scaling))
    x = torch.randn(1, 1, 64, 8)
    assert torch.equal(plain.rotate(x[..., :32, :]), scaled.rotate(x[..., :32, :]))
    assert not torch.allclose(plain.rotate(x), scaled.rotate(x), atol=1e-2)


def test_interpolation_puts_two_places_where_one_was():
    x = torch.randn(8).expand(1, 1, 64, 8)
    stretched, short = RoPE(model_config(rope_scaling="linear")).rotate(x), RoPE(C).rotate(x[..., :32, :])
    assert torch.allclose(stretched[..., ::2, :], short, atol=1e-5)
    fixed = RoPE(model_config(rope_scaling="linear", rope_factor=4)).rotate(x)
    assert torch.allclose(fixed[..., ::4, :], short[..., :16, :], atol=1e-5)


def test_yarn_keeps_fast_pairs_slows_slow_ones_and_sharpens():
    """Llama's sizes stretched fourfold, with the bounds as the authors' code finds them."""
    context, base = 4096, 10_000.0
    before = speeds(base, 128)
    after, gain = yarn(before, 4.0, context, base, fast=32, slow=1, gain=None, whole=True)
    turns = before * context / (2 * math.pi)
    assert torch.allclose(after[turns > 40], before[turns > 40])
    assert torch.allclose(after[turns < 0.9], before[turns < 0.9] / 4)
    between = (after / before)[(turns < 30) & (turns > 1.5)]
    assert (between.diff() < 0).all() and between.min() > 0.25 and between.max() < 1
    assert gain == pytest.approx(0.1 * math.log(4) + 1)


def test_waves_are_those_of_2017_at_the_size_of_the_embedding():
    x = torch.zeros(1, 40, 8)
    found = POSITIONS["sinusoidal"](C).embed(x)[0] / 0.02
    for place, column in ((0, 0), (3, 2), (31, 5), (39, 7)):
        angle = place / 10_000 ** (2 * (column // 2) / 8)
        assert found[place, column].item() == pytest.approx((math.cos if column % 2 else math.sin)(angle), abs=1e-4)
    scaled = POSITIONS["sinusoidal"](model_config(embedding_power=0.5)).embed(x)[0]
    assert torch.allclose(scaled, found * 0.02 * 8**0.5, atol=1e-6)


def test_waves_of_a_longer_text_begin_like_those_of_a_short_one():
    assert all(
        torch.equal(a[:5], b)
        for a, b in zip(waves(9, speeds(C.rope_base, 8)), waves(5, speeds(C.rope_base, 8)), strict=True)
    )


def test_without_positions_the_last_symbol_sees_a_set():
    """Earlier symbols in another order give the same logits in one layer, where no mask tells them apart."""
    model = GPT(model_config(n_layer=1, position="none"), 20).init(0).eval()
    ids = torch.arange(10)[None]
    other = ids[:, [3, 1, 0, 2, 8, 7, 6, 5, 4, 9]]
    assert torch.allclose(model(ids)[:, -1], model(other)[:, -1], atol=1e-6)
    rope = GPT(model_config(n_layer=1), 20).init(0).eval()
    assert not torch.allclose(rope(ids)[:, -1], rope(other)[:, -1], atol=1e-6)
