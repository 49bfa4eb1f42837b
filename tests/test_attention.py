"""Each modifier of the one score path, against the fused kernel and against what is known by hand."""

import pytest
import torch

from config import ModelConfig, UserError
from gpt import GPT
from parts.attention import attend, fused, near, plain
from parts.dropout import Dropout
from parts.softcap import softcap
from training.cost import require_read

NONE = Dropout(0.0)
MASK = (torch.rand(16, 16, generator=torch.Generator().manual_seed(0)) < 0.5) | torch.eye(16).bool()


def heads(n_kv: int = 4, T: int = 16):
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(2, n, T, 8, generator=draw, requires_grad=True) for n in (4, n_kv, n_kv)]


@pytest.mark.parametrize(
    ("n_kv", "mask"),
    [
        (4, None), (2, None), (1, None), (4, near(16, 5, "cpu")), (2, near(16, 1, "cpu")), (4, near(16, 99, "cpu")),
        (4, MASK), (2, MASK.tril()),
    ],
)  # fmt: skip
def test_plain_attention_equals_the_fused_kernel_in_loss_and_gradient(n_kv, mask):
    q, k, v = heads(n_kv)
    weight = torch.randn(2, 4, 16, 8, generator=torch.Generator().manual_seed(2))
    found = []
    for y in (attend(q, k, v, NONE, mask=mask), plain(q, k, v, NONE, mask), fused(q, k, v, NONE, mask)):
        found.append([y, *torch.autograd.grad((y * weight).sum(), (q, k, v))])
    for one, two, three in zip(*found, strict=True):
        assert torch.equal(one, two) and torch.allclose(one, three, atol=1e-5)


def reads(window: int | None, T: int = 5) -> list[list[int]]:
    """Which keys each query reads, where all scores are equal."""
    values = torch.eye(T).expand(1, 1, T, T)
    y = attend(torch.zeros(1, 1, T, 4), torch.zeros(1, 1, T, 4), values, NONE, mask=near(T, window, "cpu"))
    return [(row > 0).nonzero().flatten().tolist() for row in y[0, 0]]


def test_a_window_of_two_sees_itself_and_the_symbol_before():
    assert reads(2) == [[0], [0, 1], [1, 2], [2, 3], [3, 4]]
    assert reads(None) == reads(5) == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]


def test_a_group_of_heads_equals_heads_with_equal_keys_and_values():
    q, k, v = heads(n_kv=2)
    mask = near(16, 6, "cpu")
    repeated = attend(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), NONE, mask=mask)
    assert torch.allclose(attend(q, k, v, NONE, mask=mask), repeated, atol=1e-6)


def test_a_sink_is_one_more_key_without_a_value():
    q, k, v = heads(T=6)
    sinks = torch.tensor([-1.0, 0.0, 0.5, 3.0])
    y = attend(q, k, v, NONE, sinks=sinks)
    scores = (q @ k.mT) * 8**-0.5
    weights = scores.exp().tril()
    by_hand = weights / (weights.sum(-1, keepdim=True) + sinks.exp().view(-1, 1, 1)) @ v
    assert torch.allclose(y, by_hand, atol=1e-5)
    far = torch.full((4,), -1e4)
    assert torch.allclose(attend(q, k, v, NONE, sinks=far), attend(q, k, v, NONE), atol=1e-6)


def test_a_soft_cap_bounds_and_leaves_small_numbers_alone():
    x = torch.tensor([-1e6, -0.01, 0.0, 0.01, 1e6])
    assert softcap(x, 30.0).tolist() == pytest.approx([-30, -0.01, 0, 0.01, 30], abs=1e-6)
    assert softcap(x, None) is x


def test_capped_scores_are_bounded_before_the_future_is_hidden():
    q, k, v = heads(T=6)
    scores = 2 * ((50 * q @ k.mT) * 8**-0.5 / 2).tanh()
    by_hand = scores.masked_fill(~torch.ones(6, 6).tril().bool(), float("-inf")).softmax(-1) @ v
    assert torch.allclose(attend(50 * q, k, v, NONE, cap=2.0), by_hand, atol=1e-5)


def test_letters_of_the_windows_are_tiled_over_the_layers():
    model = GPT(ModelConfig(n_layer=5, n_head=1, d_model=8, context=16, windows="SL", window=3), 9)
    assert [block.attention.window for block in model.blocks] == [3, None, 3, None, 3]
    # of a text of 16 symbols, 3 in each short layer; 16 numbers a symbol and layer
    assert [block.attention.kv_numbers(16) for block in model.blocks] == [3, 16, 3, 16, 3]
    short = GPT(ModelConfig(context=128, windows="S"), 9).blocks[0].attention
    assert short.window == 32


def test_normed_queries_and_keys_bound_the_score():
    """However large the weights are, a score is at most the product of the gains times sqrt(head size)."""
    attention = GPT(ModelConfig(n_layer=1, n_head=2, d_model=16, context=8, qk_norm="rmsnorm"), 9).blocks[0].attention
    q, k = (1e4 * torch.randn(1, 2, 8, 8) for _ in range(2))
    assert (attention.q_norm(q) @ attention.k_norm(k).mT * 8**-0.5).abs().max() <= 8**0.5 + 1e-4


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"n_kv_head": 3}, "model.n_kv_head=3: must divide model.n_head=4. Allowed: 1, 2, 4"),
        ({"windows": "SXL"}, "model.windows=X: unknown. Allowed: L, S"),
        ({"windows": ""}, "model.windows="),
        ({"windows": "LLLLL"}, "model.windows=LLLLL: a pattern of 5 does not fit into model.n_layer=4"),
        ({"windows": "S", "window": 128}, "model.window=128: hides nothing of model.context=128"),
        ({"qk_norm": "rms"}, "model.qk_norm=rms"),
        ({"bias": "some"}, "model.bias=some: unknown. Allowed: all, mlp, mlp_logits, none, qkv"),
        ({"nope_every": 5}, "model.nope_every=5: leaves out none of model.n_layer=4 layers"),
        ({"rope_scaling": "ntk"}, "model.rope_scaling=ntk: unknown. Allowed: linear, none, turns, yarn"),
        ({"attention": "mla", "position": "learned"}, "model.position=learned: model.attention=mla rotates a key"),
        ({"attention": "mla", "bias": "qkv"}, "model.bias=qkv: model.attention=mla has no biases"),
        ({"mlp": "moe", "expert_groups": 3}, "model.expert_groups=3: no equal groups of model.n_experts=8"),
        ({"mlp": "moe", "expert_groups": 8}, "model.top_groups=1: groups of 1 do not hold model.top_k=2"),
        ({"mlp": "moe", "n_shared": 2}, "model.n_shared=2: nothing in this model reads it"),
        ({"rotated": 7}, "model.rotated=7 and model.d_model=96 / model.n_head=4 must be even"),
        ({"rotated": 64}, "model.rotated=64: at most 24, the numbers of a head"),
        ({"rope_base_local": 1e3}, "model.rope_base_local=1000.0: model.windows=L has no S layer"),
        ({"rope_trained": 64}, "model.rope_trained=64: nothing in this model reads it"),
        ({"qk_norm_over": "heads"}, "model.qk_norm_over=heads: nothing in this model reads it"),
        ({"mlp": "moe", "top_k": 9}, "model.top_k=9: must be from 2 to model.n_experts=8"),
        ({"attention": "mla", "windows": "SL"}, "model.windows=SL: nothing in this model reads it; leave it at L"),
        ({"attention": "dsa", "n_kv_head": 2}, "model.n_kv_head=2: nothing in this model reads it"),
        ({"attention": "delta", "qk_norm": "rmsnorm"}, "model.qk_norm=rmsnorm: nothing in this model reads it"),
        ({"position": "learned", "rope_base": 500.0}, "model.rope_base=500.0: nothing in this model reads it"),
        ({"rope_factor": 2.0}, "model.rope_factor=2.0: nothing in this model reads it"),
        ({"window": 8}, "model.window=8: nothing in this model reads it"),
        ({"attention": "delta,delta,mha"}, None),
        ({"attention": "delta,delta,delta,mha", "windows": "SL"}, None),
    ],
)
def test_a_wrong_combination_says_key_value_and_what_is_allowed(knobs, said):
    if said is None:
        return require_read(ModelConfig(**knobs))
    with pytest.raises(UserError) as error:
        require_read(ModelConfig(**knobs))
    assert said in str(error.value)
