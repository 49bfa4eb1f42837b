"""How branches meet the stream, and what the ends of the model do."""

import pytest
import torch
from torch.nn import functional as F

from config import ModelConfig, TrainConfig
from gpt import GPT, WIRINGS, loss
from parts.depth import DepthAttention, kept
from parts.mlps import MLPS
from training import cost
from training.objective import Objective

SMALL = {"n_layer": 2, "n_head": 2, "d_model": 24, "context": 16}


def build(**knobs) -> GPT:
    return GPT(ModelConfig(**{**SMALL, **knobs}), 20).init(0).eval()


def branches(block, x, position):
    return block.attention(x, position), block.mlp(x)


def test_each_wiring_is_its_formula():
    """Block 0 of each, written out; norms with gains that are not 1."""
    x = torch.randn(2, 16, 24)
    for wiring in ("sandwich", "output_norm", "parallel"):
        model = build(wiring=wiring)
        b, position = model.blocks[0], model.position
        for name in b.norms:
            getattr(b, name).gain.data.normal_()
        if wiring == "sandwich":
            h = x + b.attention_out_norm(b.attention(b.attention_norm(x), position))
            expected = h + b.mlp_out_norm(b.mlp(b.mlp_norm(h)))
        elif wiring == "output_norm":
            h = x + b.attention_norm(b.attention(x, position))
            expected = h + b.mlp_norm(b.mlp(h))
        else:
            y = b.norm(x)
            expected = x + b.attention(y, position) + b.mlp(y)
        assert torch.equal(b(x, position), expected)


def test_attention_residuals_start_as_the_plain_sum():
    """All queries at 0 weigh equally, and a norm cannot tell a mean from a sum."""
    mine, base = build(wiring="attention_residuals", norm_eps=1e-12), build(norm_eps=1e-12)
    for name, p in base.named_parameters():
        p.data.mul_(10 if p.ndim > 1 else 1)
        mine.get_parameter(name.replace("final_norm", "final_norm.1")).data.copy_(p.data)
    ids = torch.randint(20, (2, 16))
    assert torch.allclose(mine(ids), base(ids), atol=1e-3)
    mine.blocks[1].mlp_mix.query.data.fill_(1.0)
    assert not torch.allclose(mine(ids), base(ids), atol=1e-2)


def test_attention_over_depth_chooses_by_direction_not_by_size():
    mix = DepthAttention(4, 0.0)
    mix.query.data = torch.tensor([30.0, 0, 0, 0])
    small, large = torch.tensor([0.1, 0, 0, 0]), torch.tensor([0, 50.0, 0, 0])
    assert torch.allclose(mix((kept(large), kept(small))), small, atol=1e-6)
    mix.query.data.zero_()
    assert torch.allclose(mix((kept(large), kept(small))), (large + small) / 2)


def test_every_wiring_has_an_end_that_its_stream_fits():
    ids = torch.randint(20, (2, 16))
    assert {build(wiring=name)(ids).shape for name in WIRINGS} == {(2, 16, 20)}


def test_untied_tables_are_two_and_only_the_second_writes():
    tied, untied = build(), build(tied=False)
    ids = torch.randint(20, (2, 16))
    untied.unembedding.weight.data.zero_()
    assert untied(ids).abs().max() == 0 and tied(ids).abs().max() > 0
    mine, base = cost.cost(untied, 16), cost.cost(tied, 16)
    assert mine.total - base.total == 20 * 24 and mine.non_embedding == base.non_embedding
    assert mine.flops_per_token == base.flops_per_token
    assert len(list(tied.parameters())) == len(list(untied.parameters())) - 1


def test_a_scaled_embedding_is_read_larger_and_written_as_it_is():
    mine, base = build(embedding_power=0.5), build()
    ids = torch.arange(20)[None]
    assert torch.allclose(mine.embedding(ids), base.embedding(ids) * 24**0.5)
    assert mine.writer is mine.embedding


def test_capped_logits():
    mine, base, ids = build(logit_softcap=0.1), build(), torch.randint(20, (2, 16))
    assert torch.allclose(mine(ids), 0.1 * (base(ids) / 0.1).tanh(), atol=1e-6)


@pytest.mark.parametrize(("bias", "per_block"), [("none", 0), ("qkv", 3 * 24), ("all", 3 * 24 + 24 + 2 * 64 + 24)])
def test_biases_stand_where_the_knob_says_and_start_at_zero(bias, per_block):
    model = build(bias=bias)
    found = [p for name, p in model.blocks[0].named_parameters() if name.endswith("bias")]
    assert sum(p.numel() for p in found) == per_block and all(p.abs().max() == 0 for p in found)


def tanh_gelu(x):
    return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def test_mlps_are_their_formulas_and_as_wide_as_they_say():
    x, c = torch.randn(3, 24), ModelConfig(**SMALL)
    acts = {"swiglu": F.silu, "geglu": F.gelu, "gelu": F.gelu, "relu": F.relu, "relu_squared": lambda x: F.relu(x) ** 2}
    acts |= {"swiglu_wide": F.silu, "geglu_tanh": tanh_gelu, "gelu_tanh": tanh_gelu}
    widths = dict.fromkeys(acts, 96) | {"swiglu_wide": 84, "swiglu": 64, "geglu": 64, "geglu_tanh": 64}
    for name, kind in MLPS.items():
        mlp, act = kind(c), acts[name]
        assert mlp.down.in_features == widths[name]
        inner = (
            act(mlp.up(x))
            if hasattr(mlp, "up")
            else act(mlp.gate_up(x)[:, : widths[name]]) * mlp.gate_up(x)[:, widths[name] :]
        )
        assert torch.allclose(mlp(x), mlp.down(inner), atol=1e-6)


def test_label_smoothing_is_torchs_own():
    model, ids, targets = build(), *torch.randint(20, (2, 3, 16))
    row = Objective(model, TrainConfig(label_smoothing=0.1))(ids, targets)
    own = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), label_smoothing=0.1)
    assert row["total"].item() == pytest.approx(own.item(), rel=1e-6)
    assert row["loss"].item() == pytest.approx(loss(model(ids), targets).item(), rel=1e-6)
    assert row["label_smoothing"].item() == pytest.approx((row["total"] - row["loss"]).item(), rel=1e-3)


def test_z_loss_pulls_the_normalizer_towards_one():
    model, ids, targets = build(), *torch.randint(20, (2, 3, 16))
    row = Objective(model, TrainConfig(z_loss=0.5))(ids, targets)
    z = model(ids).exp().sum(-1).log()
    assert row["z_loss"].item() == pytest.approx(0.5 * z.square().mean().item(), rel=1e-5)
    assert (row["total"] - row["loss"]).item() == pytest.approx(row["z_loss"].item(), rel=1e-4)


class Noisy(torch.nn.Module):
    """An MLP that adds a loss of its own, as a router does."""

    def __init__(self, mlp, weight):
        super().__init__()
        self.mlp, self.weight = mlp, weight

    def forward(self, x):
        self.extra_losses = {"balance": self.weight * x.square().mean()}
        self.statistics = {"load": torch.tensor(self.weight)}
        return self.mlp(x)


@pytest.mark.parametrize("compiled", [False, True])
def test_losses_of_modules_are_summed_and_reported_as_means_over_layers(compiled):
    model, ids, targets = build(), *torch.randint(20, (2, 3, 16))
    for weight, block in zip((1.0, 3.0), model.blocks, strict=True):
        block.mlp = Noisy(block.mlp, weight)
    objective = Objective(model, TrainConfig())
    row = (torch.compile(objective) if compiled else objective)(ids, targets)
    assert row["load"].item() == 2 and row["balance"].item() == pytest.approx(2, abs=0.1)  # behind a norm: near 1 and 3
    assert (row["total"] - row["loss"]).item() == pytest.approx(2 * row["balance"].item(), rel=1e-4)
    row["total"].backward()
    assert model.blocks[0].mlp_norm.gain.grad.abs().max() > 0


def test_losses_of_modules_come_through_functional_call_and_vmap():
    model, ids, targets = build(), *torch.randint(20, (2, 3, 16))
    model.blocks[0].mlp = Noisy(model.blocks[0].mlp, 1.0)
    objective = Objective(model, TrainConfig())
    stacked = {name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in objective.named_parameters()}
    rows = torch.func.vmap(lambda p: torch.func.functional_call(objective, p, (ids, targets)))(stacked)
    alone = objective(ids, targets)
    assert rows["balance"].shape == (2,)
    assert rows["total"][0].item() == pytest.approx(alone["total"].item(), rel=1e-5)
    assert rows["balance"][1].item() > rows["balance"][0].item()
