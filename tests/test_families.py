"""Every published model is this gpt.py: small random models of the Hugging Face classes, side by side."""

import copy
import re
from dataclasses import fields, replace

import pytest
import torch
import transformers as hf

import families
from config import ModelConfig, UserError
from families.checking import exact, greedy
from families.settings import FAMILIES, settings
from training import cost

V, T, NEXT = 61, 24, 6
SMALL = {
    "vocab_size": V, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 40, "initializer_range": 0.2, "pad_token_id": None,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2, "rms_norm_eps": 3e-3}
OWN = {"num_key_value_heads": 1, "head_dim": 20, "rms_norm_eps": 1e-2}  # 20 is not 48 / 4
TURNS = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16, "rope_theta": 777.0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 50.0}
LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 777.0}
EVERY = {"rope_type": "default", "rope_theta": 123.0}
OLD = {
    "vocab_size": V, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 40, "initializer_range": 0.2,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
SHORT = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}
LATENT = {
    "moe_intermediate_size": 20, "n_routed_experts": 8, "num_experts_per_tok": 3, "kv_lora_rank": 14,
    "q_lora_rank": 18, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 7, "n_shared_experts": 2,
    "num_hidden_layers": 3, "first_k_dense_replace": 1, "routed_scaling_factor": 1.7, "rms_norm_eps": 1e-3,
}  # fmt: skip
GROUPS = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
SHARP = YARN | {"mscale": 0.7, "mscale_all_dim": 0.9, "beta_fast": 8, "beta_slow": 0.5}
LOCAL = {"sliding_attention": {"rope_type": "default", "rope_theta": 20.0}, "full_attention": LINEAR}

CASES = {  # class -> configurations of it
    "OpenAIGPT": [OLD, OLD | {"layer_norm_epsilon": 0.02, "n_head": 2}],
    "GPT2": [OLD, OLD | {"layer_norm_epsilon": 0.02, "n_inner": 100, "activation_function": "relu"}],
    "GPTJ": [OLD | {"rotary_dim": 4}, OLD | {"rotary_dim": 12, "layer_norm_epsilon": 0.02, "n_inner": 100}],
    "GPTNeoX": [
        SMALL | {"rope_parameters": EVERY | {"partial_rotary_factor": 0.34}},
        SMALL | {"rope_parameters": LINEAR | {"partial_rotary_factor": 1.0}, "layer_norm_eps": 0.02},
    ],
    "Llama": [
        SMALL | {"rope_parameters": EVERY},
        SMALL | GROUPED | {"rope_parameters": TURNS, "tie_word_embeddings": True},
        SMALL | OWN | {"rope_parameters": YARN},
        SMALL | OWN | {"rope_parameters": LINEAR, "hidden_act": "gelu"},
    ],
    "Mistral": [SMALL | GROUPED | {"sliding_window": 7}, SMALL | OWN | {"sliding_window": None}],
    "Qwen2": [
        SMALL | GROUPED | {"rope_parameters": EVERY},
        SMALL | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1, "tie_word_embeddings": True},
    ],
    "Qwen3": [SMALL | OWN, SMALL | GROUPED | {"head_dim": 12, "rope_parameters": YARN | {"attention_factor": 1.3}}],
    "Olmo2": [SMALL | {"rope_parameters": EVERY}, SMALL | GROUPED],
    "Gemma2": [
        SMALL | OWN | SHORT | {"query_pre_attn_scalar": 33},
        SMALL | GROUPED | SHORT | {"head_dim": 12, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0},
    ],
    "Gemma3": [
        SMALL | OWN | SHORT | {"query_pre_attn_scalar": 33, "rope_parameters": LOCAL},
        SMALL | GROUPED | SHORT | {"head_dim": 12, "num_hidden_layers": 4, "layer_types": SHORT["layer_types"] * 2},
    ],
    "Mixtral": [
        SMALL | GROUPED | {"num_local_experts": 4, "sliding_window": 7},
        SMALL | OWN | {"num_local_experts": 6, "num_experts_per_tok": 3, "rope_parameters": EVERY},
    ],
    "GptOss": [
        SMALL | OWN | SHORT | {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": YARN},
        SMALL
        | GROUPED
        | SHORT
        | {"num_local_experts": 6, "num_experts_per_tok": 3, "head_dim": 12}
        | {"rope_parameters": YARN | {"truncate": False, "beta_fast": 8.0}},
    ],
    "DeepseekV2": [
        SMALL | LATENT | {"rope_parameters": EVERY},
        SMALL | LATENT | GROUPS | {"q_lora_rank": None, "rope_parameters": SHARP, "n_shared_experts": 1},
    ],
    "DeepseekV3": [
        SMALL | LATENT | {"n_group": 4, "topk_group": 2, "rope_parameters": SHARP},
        SMALL | LATENT | {"n_group": 1, "topk_group": 1, "q_lora_rank": None, "norm_topk_prob": False},
    ],
}  # fmt: skip
HEAD = {"OpenAIGPT": "LMHeadModel", "GPT2": "LMHeadModel"}
CONFIG = {"Gemma3": "Gemma3TextConfig"}
EVERY_CASE = [pytest.param(kind, i, id=f"{kind}-{i}") for kind, cases in CASES.items() for i in range(len(cases))]
IDS = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(0))


def model_of(kind: str, number: int = 0, **changes):
    """A small random model of a class, with no weight left at the value it starts from."""
    options = copy.deepcopy(CASES[kind][number]) | changes
    config = getattr(hf, CONFIG.get(kind, f"{kind}Config"))(**options)
    torch.manual_seed(1)
    model = getattr(hf, kind + HEAD.get(kind, "ForCausalLM"))(config).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.ndim == 1 or "bias" in name or "sinks" in name:
                tensor.add_(torch.randn(tensor.shape), alpha=0.2)
    return model


def test_every_class_is_tested():
    assert {model_of(kind).config.model_type for kind in CASES} == set(FAMILIES)


@pytest.mark.parametrize(("kind", "number"), EVERY_CASE)
def test_logits_and_greedy_continuation_are_those_of_the_class(kind, number):
    model = model_of(kind, number)
    assert model(IDS).logits.std() > 0.1
    assert families.check(model, IDS) < 1e-4
    expected = greedy(lambda ids: model(ids).logits, IDS, NEXT)
    assert torch.equal(greedy(families.from_hf(model), IDS, NEXT), expected)


@pytest.mark.parametrize(("kind", "number"), EVERY_CASE)
def test_in_float64_the_formulas_are_the_same(kind, number):
    with exact():
        model = model_of(kind, number)
    assert families.check(model, IDS) < 1e-9


def by_hand(monkeypatch, knob: str, turn):
    """from_hf with one knob turned."""
    from families import weights

    monkeypatch.setattr(
        weights, "settings", lambda config: replace(c := settings(config), **{knob: turn(getattr(c, knob))})
    )


@pytest.mark.parametrize(("kind", "number"), [("Llama", 1), ("GPTNeoX", 0), ("Gemma3", 0), ("DeepseekV2", 0)])
@pytest.mark.parametrize("knob", ["norm_eps", "rope_base"])
def test_a_wrong_epsilon_or_rotary_base_is_seen(kind, number, knob, monkeypatch):
    model = model_of(kind, number)
    by_hand(monkeypatch, knob, lambda value: 1.5 * value)
    assert families.check(model, IDS) > 1e-4


def test_every_knob_that_a_family_turns_is_seen(monkeypatch):
    """At its default, the check fails; but for the context, which only says how far angles are kept."""
    turned, seen = {"context"}, {"context"}
    for kind, number in ((kind, i) for kind, cases in CASES.items() for i in range(len(cases))):
        model = model_of(kind, number)
        c = settings(model.config)
        knobs = {f.name for f in fields(c) if getattr(c, f.name) != f.default and f.name not in cost.SIZE}
        for knob in knobs - seen:
            default = getattr(ModelConfig(), knob)
            by_hand(monkeypatch, knob, lambda value, default=default: default)
            if fails(model):
                seen.add(knob)
            monkeypatch.undo()
        turned |= knobs
    assert turned == seen and len(seen) > 40


def fails(model) -> bool:
    try:
        return families.check(model, IDS) > 1e-4
    except UserError:  # the weights do not fit any more
        return True


def test_in_float64_an_epsilon_of_1e5_instead_of_1e6_is_seen(monkeypatch):
    with exact():
        model = model_of("Qwen3", 0, rms_norm_eps=1e-6)
    assert families.check(model, IDS) < 1e-9
    by_hand(monkeypatch, "norm_eps", lambda value: 1e-5)
    assert families.check(model, IDS) > 1e-9


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("Llama", {"hidden_act": "tanh"}, "llama: hidden_act=tanh: unknown. Allowed: gelu, gelu_pytorch_tanh, silu"),
        ("Llama", {"attention_bias": True}, "llama: attention_bias=True: only False is known here"),
        ("Llama", {"rope_parameters": YARN | {"rope_type": "dynamic"}}, "llama: rope_type=dynamic: unknown. Allowed"),
        ("GptOss", {"swiglu_limit": 5.0}, "gpt_oss: swiglu_limit=5.0: only 7.0 is known here"),
    ],
)  # fmt: skip
def test_what_the_parts_cannot_be_is_told_by_name(kind, changes, said):
    with pytest.raises(UserError, match=re.escape(said)):
        families.from_hf(model_of(kind, **changes))


def test_an_unknown_class_is_told_by_name():
    model = hf.BloomForCausalLM(hf.BloomConfig(vocab_size=V, hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises(UserError, match="model_type=bloom: unknown"):
        families.from_hf(model)
