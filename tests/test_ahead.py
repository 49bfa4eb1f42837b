"""Multi-token prediction: what the extra heads see, what they are asked, and that evaluation is without them."""

import pytest
import torch
from torch.nn import functional as F

from config import ModelConfig, TrainConfig, UserError, from_plain
from gpt import GPT
from limits import check
from test_swaps import loud
from training import cost
from training.objective import Objective

SMALL = {"n_layer": 2, "n_head": 2, "d_model": 24, "context": 16}


def made(heads: int) -> GPT:
    return loud(GPT(ModelConfig(**SMALL, predict_ahead=heads), 20).init(0))


def logits_ahead(model, ids, targets, step):
    """By hand: of the head that predicts `step` symbols behind the next, at the places that have such a symbol."""
    state = model.states(ids)
    for i in range(step):
        known = torch.stack([model.embedding.weight[row[i:]] for row in targets])
        state = model.ahead[i](state[:, : known.shape[1]], known, model.position)
    return model.unembed(state)[:, :-1]


def test_each_head_is_asked_for_the_symbol_one_further():
    model, text = made(2), torch.randint(20, (4, 17))
    ids, targets = text[:, :-1], text[:, 1:]
    row = Objective(model, TrainConfig(ahead_weight=0.5))(ids, targets)
    for step in (1, 2):
        logits = logits_ahead(model, ids, targets, step)
        expected = F.cross_entropy(logits.flatten(0, 1), text[:, step + 1 :].flatten())
        assert row[f"loss_{step}_ahead"].item() == pytest.approx(expected.item(), abs=1e-5)
    total = row["loss"] + 0.5 * (row["loss_1_ahead"] + row["loss_2_ahead"]) / 2
    assert row["total"].item() == pytest.approx(total.item(), abs=1e-5)


def test_a_head_does_not_see_what_it_is_asked_for():
    """Another symbol at place 9 changes the head's logits from where it is known, two places before its own, on."""
    model, text = made(1), torch.randint(20, (1, 17))
    other = text.clone()
    other[0, 9] = (text[0, 9] + 1) % 20
    first, second = (logits_ahead(model, t[:, :-1], t[:, 1:], 1)[0] for t in (text, other))
    moved = (first - second).abs().amax(-1) > 0
    assert moved.tolist() == [False] * 8 + [True] * 7


def test_the_main_head_and_its_loss_are_the_baselines():
    mine, base = made(1), made(0)
    ids, targets = torch.randint(20, (2, 4, 16))
    assert torch.equal(mine(ids), base(ids))
    rows = [Objective(model, TrainConfig())(ids, targets) for model in (mine, base)]
    assert torch.equal(rows[0]["loss"], rows[1]["loss"]) and rows[0]["total"] > rows[1]["total"]


def test_a_head_costs_a_block_a_projection_and_its_norms():
    mine, base = (cost.of_config(ModelConfig(n_layer=2, predict_ahead=n), 50) for n in (1, 0))
    block, D = 12 * 96 * 96, 96
    assert mine.total - base.total == block + 2 * D * D + (2 + 3) * D
    assert mine.kv_bytes_per_token == base.kv_bytes_per_token


@pytest.mark.parametrize("heads", [-1, 16])
def test_more_heads_than_a_text_has_symbols_are_refused(heads):
    with pytest.raises(UserError, match=f"model.predict_ahead={heads}"):
        check(from_plain({"model": {"context": 16, "predict_ahead": heads}}))
