"""Sparse attention: which keys a query sees, by hand; and that what chooses them learns to."""

import pytest
import torch
from torch.nn import functional as F

from config import ModelConfig, UserError
from gpt import GPT
from parts.attention import MultiHead, attend
from parts.dropout import Dropout
from parts.positions import RoPE
from parts.sparse import ChosenBlocks, TopKeys, best_blocks, divergence, top_keys

CONFIG = ModelConfig(n_head=2, d_model=24, context=32)


def made(kind, **knobs):
    torch.manual_seed(0)
    layer = kind(ModelConfig(**{"n_head": 2, "d_model": 24, "context": 32, **knobs}), 0)
    for name, p in layer.named_parameters():
        torch.nn.init.normal_(p, mean=float("norm.weight" in name), std=0.4)
    return layer


def test_a_mask_means_the_same_to_the_plain_and_the_fused_path():
    q, k, v = (torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3))
    weight, mask = torch.randn(2, 3, 16, 8), torch.rand(2, 1, 16, 16) < 0.3
    mask[..., 0] = True
    found = []
    for y in (attend(q, k, v, Dropout(0.0), mask=mask), F.scaled_dot_product_attention(q, k, v, attn_mask=mask)):
        found.append([y, *torch.autograd.grad((y * weight).sum(), (q, k, v))])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*found, strict=True))
    causal = torch.ones(16, 16, dtype=torch.bool).tril()
    assert torch.equal(attend(q, k, v, Dropout(0.0), mask=causal), attend(q, k, v, Dropout(0.0)))


def test_top_keys_are_the_highest_of_the_past():
    scores = torch.tensor([[[1.0, 9, 9, 9], [1, 2, 9, 9], [3, 1, 2, 9], [4, 3, 1, 2]]])
    assert top_keys(scores, 2)[0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0]]
    assert torch.equal(top_keys(scores, 9)[0], torch.ones(4, 4, dtype=torch.bool).tril())


def test_the_blocks_in_full_are_first_own_last_and_best():
    weights = torch.tensor([0.1, 0.2, 0.4, 0.3, 0.0, 0.0, 0.0]).expand(1, 1, 7, 7)
    seen = best_blocks(weights, torch.arange(7), 4)[0, 0]
    assert [row.nonzero().flatten().tolist() for row in seen] == [
        [0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 2, 3, 4], [0, 2, 4, 5], [0, 2, 5, 6]
    ]  # fmt: skip


def test_with_enough_keys_the_indexed_layer_is_multi_head_attention():
    sparse, full, x = made(TopKeys, sparse_keys=32), MultiHead(CONFIG, 0), torch.randn(2, 32, 24)
    full.load_state_dict({name: value for name, value in sparse.state_dict().items() if "indexer" not in name})
    assert torch.allclose(sparse(x, RoPE(CONFIG)), full(x, RoPE(CONFIG)), atol=1e-5)
    few = made(TopKeys, sparse_keys=4)
    assert not torch.allclose(few(x, RoPE(CONFIG)), full(x, RoPE(CONFIG)), atol=0.1)


def test_divergence_by_hand():
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.7, 0.3, 0.0]]).view(1, 2, 1, 3)
    seen, scores = torch.tensor([[[True, True, False]]]), torch.tensor([[[1.0, 1.0, 9.0]]])
    p = torch.tensor([0.6, 0.4])
    assert divergence(weights, scores, seen).item() == pytest.approx((p * (2 * p).log()).sum().item())


def test_the_divergence_moves_the_indexer_alone_and_the_output_does_not():
    layer, x = made(TopKeys), torch.randn(2, 32, 24, requires_grad=True)
    y = layer(x, RoPE(CONFIG))
    chosen = list(layer.indexer.parameters())
    assert all(g is None for g in torch.autograd.grad(y.sum(), chosen, retain_graph=True, allow_unused=True))
    others = [x, layer.qkv.weight, layer.out.weight]
    loss = layer.extra_losses["indexer"]
    assert all(g is None for g in torch.autograd.grad(loss, others, retain_graph=True, allow_unused=True))
    assert all(g.abs().max() > 0 for g in torch.autograd.grad(loss, chosen))


def test_the_indexer_learns_where_attention_looks():
    """Trained on its own loss, it chooses keys that hold more of full attention's weight than at first."""
    layer, position = made(TopKeys, sparse_keys=8), RoPE(CONFIG)
    x = torch.randn(16, 32, 24)
    q, k, _ = layer.heads(x, position)
    scores = (q @ k.mT * 12**-0.5).masked_fill(torch.ones(32, 32, dtype=torch.bool).triu(1), float("-inf"))
    full = scores.softmax(-1).mean(1).detach()

    def held():
        return (full * top_keys(layer.indexer(x, position), 8))[:, 16:].sum(-1).mean().item()

    before, optimizer = held(), torch.optim.Adam(layer.indexer.parameters(), 0.03)
    for _ in range(100):
        layer(x, position)
        layer.extra_losses["indexer"].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert held() > before + 0.1


def test_three_views_by_hand():
    """Query 21 with blocks of 4: five are over, blocks 0, 4 and 5 and the best other are seen in full, 3 are near."""
    knobs = {"sparse_block": 4, "sparse_blocks": 4, "sparse_window": 3}
    layer, x, t = made(ChosenBlocks, **knobs), torch.randn(1, 32, 24), 21
    q, k, v = layer.heads(x, RoPE(CONFIG))
    mean = layer.brief.weight.softmax(-1)
    expected = []
    for head in range(2):
        brief_k, brief_v = (
            (z[0, head].view(8, 4, 12) * w[:, None]).sum(1) for z, w in zip((k, v), mean[:, head], strict=True)
        )
        weights = (brief_k[:5] @ q[0, head, t] * 12**-0.5).softmax(0)
        best = 1 + int(weights[1:4].argmax())
        full = [s for s in range(t + 1) if s // 4 in (0, best, 4, 5)]
        gate = layer.gates(x[0, t]).sigmoid().view(3, 2)[:, head]
        y = gate[0] * (weights @ brief_v[:5])
        for g, keys in ((gate[1], full), (gate[2], [19, 20, 21])):
            y = y + g * ((k[0, head, keys] @ q[0, head, t] * 12**-0.5).softmax(0) @ v[0, head, keys])
        expected.append(y)
    assert torch.allclose(layer(x, RoPE(CONFIG))[0, t], layer.out(torch.cat(expected)), atol=1e-5)


@pytest.mark.parametrize("T", [1, 5, 8, 13])
def test_texts_that_blocks_do_not_divide(T):
    """The first T symbols give the same alone as in a longer text."""
    layer, x = made(ChosenBlocks), torch.randn(2, 32, 24)
    assert torch.allclose(layer(x[:, :T], RoPE(CONFIG)), layer(x, RoPE(CONFIG))[:, :T], atol=1e-5)


def test_fewer_blocks_than_are_always_seen_are_refused():
    with pytest.raises(UserError, match=r"model.sparse_blocks=2: must be at least 3"):
        GPT(ModelConfig(attention="nsa", sparse_blocks=2), 10)
