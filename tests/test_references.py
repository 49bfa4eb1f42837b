"""Layers that no published causal model of the families has by itself, against other people's code for them."""

import pytest
import torch
from torch import nn
from transformers import Mamba2Config, Qwen3NextConfig
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer, mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet, torch_recurrent_gated_delta_rule

from config import ModelConfig
from families.checking import exact
from gpt import GPT
from parts.memory import AtOnce
from parts.recurrent import KERNEL, GatedDelta, StateSpace, gated_delta, state_space
from test_family_files import config_of

C = ModelConfig(n_layer=4, n_head=4, d_model=48, context=80, norm_eps=1e-3)
V = 40


def drawn(layer: nn.Module) -> nn.Module:
    """With weights of a trained size."""
    torch.manual_seed(0)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(std=0.3)
    return layer.eval()


@pytest.mark.parametrize("T", [1, 7, 80])
def test_the_gated_delta_rule_is_that_of_qwen3_next(T):
    with exact():
        torch.manual_seed(T)
        q, k = (nn.functional.normalize(torch.randn(2, 3, T, 5), dim=-1) for _ in range(2))
        v, write, log_decay = torch.randn(2, 3, T, 7), torch.rand(2, 3, T), -torch.rand(2, 3, T)
        turned = [x.transpose(1, 2) for x in (q, k, v, log_decay, write)]
        theirs = torch_recurrent_gated_delta_rule(*turned)[0].transpose(1, 2)
        assert (gated_delta(q * 5**-0.5, k, v, write, log_decay) - theirs).abs().max() < 1e-9


def test_the_gated_delta_layer_is_that_of_qwen3_next():
    """They add 1e-6 under the root of a query's length, we do not: float32 does not see it."""
    mine = drawn(GatedDelta(C, 0))
    theirs = Qwen3NextGatedDeltaNet(
        Qwen3NextConfig(
            hidden_size=48, num_hidden_layers=4, linear_num_value_heads=4, linear_num_key_heads=4,
            linear_key_head_dim=mine.key, linear_value_head_dim=mine.value, linear_conv_kernel_dim=KERNEL,
            rms_norm_eps=1e-3,
        ), 0,
    ).eval()  # fmt: skip
    q, k, v = (part.unflatten(0, (4, -1)) for part in mine.qkv.weight.split(mine.sizes))
    write, forget = mine.rates.weight.chunk(2)
    with torch.no_grad():
        theirs.in_proj_qkvz.weight.copy_(torch.cat([q, k, v, mine.gate.weight.unflatten(0, (4, -1))], 1).flatten(0, 1))
        theirs.in_proj_ba.weight.copy_(torch.stack([write, forget], 1).flatten(0, 1))
        theirs.conv1d.weight.copy_(mine.conv.weight.T.unsqueeze(1))
        for to, source in (
            (theirs.A_log, mine.decay.log_rate), (theirs.dt_bias, mine.decay.shift),
            (theirs.norm.weight, mine.norm.gain), (theirs.out_proj.weight, mine.out.weight),
        ):  # fmt: skip
            to.copy_(source)
        x = torch.randn(2, 80, 48)
        found = mine(x, AtOnce())
    assert found.std() > 0.1 and (found - theirs(x)).abs().max() < 1e-4


@pytest.mark.parametrize("T", [1, 7, 80])
def test_the_state_space_product_is_that_of_mamba_2(T):
    with exact():
        torch.manual_seed(T)
        k, q = torch.randn(2, 2, 1, T, 5).unbind(0)
        v, step, rate, skip = torch.randn(2, 3, T, 4), torch.rand(2, 3, T), torch.rand(3), torch.rand(3)
        turned = [x.transpose(1, 2) for x in (v, step)]
        theirs = mamba2_chunk_scan(*turned, -rate, k.transpose(1, 2), q.transpose(1, 2), chunk_size=8, D=skip)
        mine = state_space(q, k, v * step.unsqueeze(-1), -rate.view(3, 1) * step) + skip.view(3, 1, 1) * v
        assert (mine.transpose(1, 2) - theirs).abs().max() < 1e-9


@pytest.mark.parametrize("bound", [1e-4, 1e-9])
def test_the_state_space_layer_is_that_of_mamba_2(bound):
    with exact() if bound < 1e-6 else torch.no_grad(), torch.no_grad():
        mine = drawn(StateSpace(C, 0))
        config = Mamba2Config(
            num_heads=4, head_dim=12, hidden_size=48, state_size=mine.state, expand=1, n_groups=1, conv_kernel=KERNEL,
            use_conv_bias=False, use_bias=False, chunk_size=16, layer_norm_epsilon=1e-3, num_hidden_layers=4,
        )  # fmt: skip
        theirs = Mamba2Mixer(config, 0).eval()
        theirs.in_proj.weight.copy_(torch.cat([mine.gate.weight, mine.mixed.weight, mine.rates.weight]))
        theirs.conv1d.weight.copy_(mine.conv.weight.T.unsqueeze(1))
        for to, source in (
            (theirs.A_log, mine.decay.log_rate), (theirs.dt_bias, mine.decay.shift), (theirs.D, mine.skip),
            (theirs.norm.weight, mine.norm.gain), (theirs.out_proj.weight, mine.out.weight),
        ):  # fmt: skip
            to.copy_(source)
        x = torch.randn(2, 80, 48)
        found = mine(x, AtOnce())
        assert found.std() > 0.1 and (found - theirs(x)).abs().max() < bound


class Decoder2017(nn.Module):
    """The network of 2017 from torch's own layers, reading one text: (B, T) -> logits (B, T, V)."""

    def __init__(self, model: GPT, c: ModelConfig):
        super().__init__()
        self.embedding, width = model.embedding.weight, 4 * c.d_model
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(c.d_model, c.n_head, width, 0.0, layer_norm_eps=c.norm_eps, batch_first=True)
            for _ in range(c.n_layer)
        )
        for layer, block in zip(self.layers, model.blocks, strict=True):
            layer.load_state_dict({
                "self_attn.in_proj_weight": block.attention.qkv.weight,
                "self_attn.in_proj_bias": torch.zeros(3 * c.d_model),
                "self_attn.out_proj.weight": block.attention.out.weight,
                "self_attn.out_proj.bias": torch.zeros(c.d_model),
                "linear1.weight": block.mlp.up.weight, "linear1.bias": block.mlp.up.bias,
                "linear2.weight": block.mlp.down.weight, "linear2.bias": block.mlp.down.bias,
                "norm1.weight": block.attention_norm.weight, "norm1.bias": block.attention_norm.bias,
                "norm2.weight": block.mlp_norm.weight, "norm2.bias": block.mlp_norm.bias,
            })  # fmt: skip

    def forward(self, ids):
        T, D = ids.shape[1], self.embedding.shape[1]
        angle = torch.arange(T).unsqueeze(1) / 10_000 ** (torch.arange(0, D, 2) / D)
        waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
        x = self.embedding[ids] * D**0.5 + waves
        for layer in self.layers:
            x = layer(x, nn.Transformer.generate_square_subsequent_mask(T, dtype=x.dtype))
        return x @ self.embedding.T


@pytest.mark.parametrize("bound", [1e-4, 1e-9])
def test_the_decoder_of_2017_is_that_of_torch(bound):
    with exact() if bound < 1e-6 else torch.no_grad(), torch.no_grad():
        c = config_of("vaswani2017_tiny").model
        model = drawn(GPT(c, V))
        ids = torch.randint(V, (2, 24))
        logits = model(ids)
        assert (logits - Decoder2017(model, c).eval()(ids)).abs().max() < bound * logits.abs().max()
