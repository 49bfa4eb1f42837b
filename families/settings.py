"""From the configuration of a Hugging Face class to ModelConfig: what each family fixes, reads and cannot do."""

import math
from dataclasses import dataclass, field
from typing import Any

from config import ModelConfig, UserError, lookup

GATED = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh"}
PLAIN = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
SILU = {"silu": "swiglu"}  # of experts


@dataclass(frozen=True)
class Family:
    """How one class of published models is said in the words of ModelConfig."""

    fixed: dict[str, Any] = field(default_factory=dict)  # knob -> value
    reads: dict[str, str] = field(default_factory=dict)  # knob -> attribute of the configuration
    only: dict[str, Any] = field(default_factory=dict)  # attribute -> the one value that the parts can do
    act: tuple[str, str, dict] = ("mlp", "hidden_act", GATED)  # knob, attribute, values


SIZES = {
    "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "d_model": "hidden_size",
    "context": "max_position_embeddings", "tied": "tie_word_embeddings",
}  # fmt: skip
OLD = {"norm": "layernorm", "position": "learned", "bias": "all"}  # GPT and GPT-2
GROUPED = {"norm_eps": "rms_norm_eps", "mlp_width": "intermediate_size", "n_kv_head": "num_key_value_heads"}
HEADS = GROUPED | {"head_width": "head_dim"}
PLAIN_BIAS = {"attention_bias": False}
GEMMA = {"wiring": "sandwich", "embedding_power": 0.5}
GEMMA_READS = HEADS | {"score_softcap": "attn_logit_softcapping", "logit_softcap": "final_logit_softcapping"}
EXPERTS = {"top_k": "num_experts_per_tok", "n_experts": "num_local_experts"}
LATENT = {
    "norm_eps": "rms_norm_eps", "head_width": "qk_nope_head_dim", "rotated": "qk_rope_head_dim",
    "value_width": "v_head_dim", "latent_width": "kv_lora_rank", "query_width": "q_lora_rank",
    "mlp_width": "moe_intermediate_size", "dense_width": "intermediate_size", "first_dense": "first_k_dense_replace",
    "n_shared": "n_shared_experts", "n_experts": "n_routed_experts", "top_k": "num_experts_per_tok",
    "gate_scale": "routed_scaling_factor",
}  # fmt: skip
DEEPSEEK = {"attention": "mla", "mlp": "moe_shared", "latent_eps": 1e-6}

FAMILIES = {  # by `model_type`
    "openai-gpt": Family(
        OLD | {"wiring": "postnorm"}, {"norm_eps": "layer_norm_epsilon"}, act=("mlp", "afn", {"gelu": "gelu_tanh"})
    ),
    "gpt2": Family(
        OLD,
        {"norm_eps": "layer_norm_epsilon", "mlp_width": "n_inner"},
        {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
        ("mlp", "activation_function", PLAIN),
    ),
    "gptj": Family(
        {"norm": "layernorm", "wiring": "parallel", "bias": "mlp_logits"},
        {"norm_eps": "layer_norm_epsilon", "mlp_width": "n_inner", "rotated": "rotary_dim"},
        {"tie_word_embeddings": False},
        ("mlp", "activation_function", PLAIN),
    ),
    "gpt_neox": Family(
        {"norm": "layernorm", "wiring": "parallel_two_norms", "bias": "all"},
        {"norm_eps": "layer_norm_eps", "mlp_width": "intermediate_size"},
        {"use_parallel_residual": True, "attention_bias": True},
        ("mlp", "hidden_act", PLAIN),
    ),
    "llama": Family({}, HEADS, PLAIN_BIAS | {"mlp_bias": False}),
    "mistral": Family({}, HEADS),
    "qwen2": Family({"bias": "qkv"}, GROUPED),
    "qwen3": Family({"qk_norm": "rmsnorm"}, HEADS, PLAIN_BIAS),
    "olmo2": Family({"wiring": "output_norm", "qk_norm": "rmsnorm", "qk_norm_over": "heads"}, GROUPED, PLAIN_BIAS),
    "gemma2": Family(GEMMA, GEMMA_READS, PLAIN_BIAS, ("mlp", "hidden_activation", GATED)),
    "gemma3_text": Family(
        GEMMA | {"qk_norm": "rmsnorm"},
        GEMMA_READS,
        PLAIN_BIAS | {"use_bidirectional_attention": False},
        ("mlp", "hidden_activation", GATED),
    ),
    "mixtral": Family({"mlp": "moe"}, HEADS | EXPERTS, act=("gating", "hidden_act", SILU)),
    "gpt_oss": Family(
        {"mlp": "moe", "bias": "all", "sinks": True},
        HEADS | EXPERTS,
        {"attention_bias": True, "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
        ("gating", "hidden_act", {"silu": "swiglu_clipped"}),
    ),
    "deepseek_v2": Family(
        DEEPSEEK | {"gate_sum": False}, LATENT, PLAIN_BIAS | {"mlp_bias": False}, ("gating", "hidden_act", SILU)
    ),
    "deepseek_v3": Family(
        DEEPSEEK | {"router": "sigmoid"},
        LATENT | {"gate_sum": "norm_topk_prob"},
        PLAIN_BIAS,
        ("gating", "hidden_act", SILU),
    ),
}


def settings(config) -> ModelConfig:
    """The settings that make gpt.py the network of a `transformers` configuration.

    Raises UserError, naming the attribute, for a class or a value that the parts cannot be.
    """
    family = lookup(FAMILIES, config.model_type, "model_type")
    for name, value in family.only.items():
        require(config, name, getattr(config, name, value), value)
    branch, act, values = family.act
    reads = {knob: getattr(config, name, None) for knob, name in (SIZES | family.reads).items()}
    found = reads | family.fixed | {branch: lookup(values, getattr(config, act), f"{config.model_type}: {act}")}
    found |= windows(config) | turning(config, found) | groups(config)
    if found.get("n_kv_head") == found["n_head"]:
        found["n_kv_head"] = None
    if found.get("head_width") == found["d_model"] / found["n_head"]:
        found["head_width"] = None
    return ModelConfig(**found)


def require(config, name: str, value, known) -> None:
    """Raises UserError for a value other than the one that the parts can do."""
    if value != known:
        raise UserError(f"{config.model_type}: {name}={value}: only {known} is known here")


def windows(config) -> dict:
    """Which layers see how much, as the shortest pattern."""
    width, n_layer = getattr(config, "sliding_window", None), config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or [SLIDING if width else FULL] * n_layer
    letters = "".join(lookup(LETTERS, kind, f"{config.model_type}: layer_types") for kind in kinds)
    if "S" not in letters or width is None or (width >= config.max_position_embeddings and not by_kind(config)):
        return {}
    shortest = next(n for n in range(1, n_layer + 1) if all(letters[i] == letters[i % n] for i in range(n_layer)))
    return {"windows": letters[:shortest], "window": width}


def turning(config, found: dict) -> dict:
    """How queries and keys are rotated, and the scale of their products."""
    rope, size = getattr(config, "rope_parameters", None) or {}, getattr(config, "head_dim", None)
    knobs, scale = {}, getattr(config, "query_pre_attn_scalar", None)
    if by_kind(config):
        require(config, f"rope_type of {SLIDING}", rope[SLIDING].get("rope_type", "default"), "default")
        knobs["rope_base_local"], rope = rope[SLIDING]["rope_theta"], rope[FULL]
    if rope:
        knobs |= {"rope_base": float(rope["rope_theta"])}
        kind = rope.get("rope_type", "default")
        knobs |= lookup(SCALINGS, kind, f"{config.model_type}: rope_type")(rope, config.max_position_embeddings)
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        size = size or config.hidden_size // config.num_attention_heads
        knobs["rotated"] = int(size * rope["partial_rotary_factor"])
    if found.get("attention") == "mla" and rope.get("rope_type") != "default" and rope.get("mscale_all_dim"):
        scale = config.qk_head_dim / sharper(rope["factor"], rope["mscale_all_dim"]) ** 4
    return knobs | ({"score_scale": scale**-0.5} if scale else {})


def by_kind(config) -> bool:
    """Whether layers with short windows are rotated in another way."""
    return SLIDING in (getattr(config, "rope_parameters", None) or {})


def yarn(rope: dict, context: int) -> dict:
    gain = rope.get("attention_factor")
    if gain is None and rope.get("mscale") and rope.get("mscale_all_dim"):
        gain = sharper(rope["factor"], rope["mscale"]) / sharper(rope["factor"], rope["mscale_all_dim"])
    return {
        "rope_scaling": "yarn", "rope_factor": float(rope["factor"]),
        "rope_trained": rope["original_max_position_embeddings"], "rope_fast": float(rope.get("beta_fast") or 32),
        "rope_slow": float(rope.get("beta_slow") or 1), "rope_gain": gain, "rope_whole": rope.get("truncate", True),
    }  # fmt: skip


def turns(rope: dict, context: int) -> dict:
    return {
        "rope_scaling": "turns", "rope_factor": float(rope["factor"]),
        "rope_trained": rope["original_max_position_embeddings"], "rope_fast": float(rope["high_freq_factor"]),
        "rope_slow": float(rope["low_freq_factor"]),
    }  # fmt: skip


def linear(rope: dict, context: int) -> dict:
    return {
        "rope_scaling": "linear", "rope_factor": float(rope["factor"]), "rope_trained": int(context / rope["factor"])
    }  # fmt: skip


def sharper(factor: float, weight: float) -> float:
    return 1 + 0.1 * weight * math.log(max(factor, 1))


def groups(config) -> dict:
    if getattr(config, "topk_method", "") == "greedy" or not getattr(config, "n_group", None):
        return {}
    return {"expert_groups": config.n_group, "top_groups": config.topk_group}


FULL, SLIDING = "full_attention", "sliding_attention"
LETTERS = {FULL: "L", SLIDING: "S"}
SCALINGS = {"default": lambda rope, context: {}, "linear": linear, "yarn": yarn, "llama3": turns}
