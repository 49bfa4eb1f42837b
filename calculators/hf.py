"""A Hugging Face config.json as a Model. What the file does not say is an error, or a note beside the answer."""

from pathlib import Path

from calculators.flags import read_json
from calculators.models import Model, make
from config import UserError

QK = {"qk_norm": "head"}
# What the code of each model type does that its file does not say; `tied`: where the file is silent.
TYPES = {
    "llama": {},
    "mistral": {},
    "mixtral": {"mlps": ("experts",)},
    "llama4_text": {"mlps": ("experts",)},
    "qwen2": {"attention_bias": "qkv"},
    "qwen3": QK,
    "qwen3_moe": QK,
    "qwen3_next": {**QK, "attention_gate": True, "shared_gate": True},
    "gemma2": {"norms": 4, "tied": True},
    "gemma3_text": {**QK, "norms": 4, "tied": True},
    "olmo2": {"qk_norm": "width"},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "kimi_k2": {},
    "glm4_moe": {},
    "gpt_oss": {"attention_bias": "all", "sinks": True, "mlp_bias": True, "router_bias": True, "mlps": ("experts",)},
    "jamba": {},
    "gpt2": {"gated": False, "mlp_bias": True, "attention_bias": "all", "norm_bias": True, "tied": True},
}
LOCAL = ("sliding_attention", "chunked_attention")
LAYERS = {"full_attention", *LOCAL}  # that any model type may have
NAMES = {  # field -> its names in such files
    "n_layer": ("num_hidden_layers", "n_layer"),
    "d_model": ("hidden_size", "n_embd"),
    "n_head": ("num_attention_heads", "n_head"),
    "n_kv_head": ("num_key_value_heads",),
    "vocab": ("vocab_size",),
}


def read(path: Path, given: dict) -> tuple[Model, list[str]]:
    """The model, and what was assumed. `given`: fields of Model that the command line sets.

    Raises UserError: no such file, no JSON, a needed field that is not there.
    """
    c = read_json(path)
    c = c["text_config"] if isinstance(c.get("text_config"), dict) else c
    kind, notes = c.get("model_type"), []
    if kind not in TYPES:
        notes.append(f"model_type {kind} is not known here: the parameters are counted as those of llama")
        if other := set(c.get("layer_types") or ()) - LAYERS:
            raise UserError(f"{path}: layers of {', '.join(sorted(other))} in model_type {kind} are not known here")
    try:
        plain = {**TYPES.get(kind, {}), "label": c.get("_name_or_path") or path.stem}
        plain |= width(c, kind, given, notes) | mlp(c, kind) | recurrent(c, kind)
        if "windows" not in given:
            plain["windows"] = windows(c, kind, notes)
        return make(plain | given, str(path)), notes
    except KeyError as error:
        raise UserError(f"{path}: no {error.args[0]}") from None
    except (TypeError, ZeroDivisionError) as error:
        raise UserError(f"{path}: {error}") from None


def need(c: dict, name: str):
    """Raises KeyError, naming the field, where it is not there or null."""
    if c.get(name) is None:
        raise KeyError(name)
    return c[name]


def count(c: dict, name: str) -> int:
    """Raises KeyError where it is not there, TypeError where it is no whole number above 0."""
    value = need(c, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TypeError(f"{name}={value!r}: must be a whole number above 0")
    return value


def width(c: dict, kind: str | None, given: dict, notes: list[str]) -> dict:
    """Layers, heads, tables and biases."""
    found = {}
    for field, names in NAMES.items():
        name = next((name for name in names if c.get(name) is not None), names[0])
        mha = field == "n_kv_head" and (kind == "gpt2" or c.get("kv_lora_rank"))  # have no such field, or no use for it
        if field not in given and not (mha and name not in c):
            found[field] = count(c, name)
    found.setdefault("n_kv_head", given.get("n_kv_head", found.get("n_head")))
    tied = c.get("tie_word_embeddings")
    found |= {} if tied is None else {"tied": tied}
    found |= {"attention_bias": "all" if kind != "glm4_moe" else "qkv"} if c.get("attention_bias") else {}
    found |= QK if c.get("use_qk_norm") and kind == "glm4_moe" else {}
    found |= {"positions": need(c, "n_positions")} if kind == "gpt2" else {}
    return found | (latent(c) if c.get("kv_lora_rank") else head(c, {**found, **given}, notes))


def head(c: dict, found: dict, notes: list[str]) -> dict:
    if c.get("head_dim") or "head_size" in found:
        return {"head_size": found.get("head_size", c.get("head_dim"))}
    size = found["d_model"] // found["n_head"]
    notes.append(f"no head_dim in the file: {found['d_model']} / {found['n_head']} = {size} is taken")
    return {"head_size": size}


def latent(c: dict) -> dict:
    """Raises UserError where keys and values have heads of two sizes: not modelled here."""
    key, value = need(c, "qk_nope_head_dim"), need(c, "v_head_dim")
    if key != value:
        raise UserError(f"qk_nope_head_dim={key} and v_head_dim={value}: only equal sizes are known here")
    ranks = {"q_rank": c.get("q_lora_rank") or 0, "kv_rank": need(c, "kv_lora_rank")}
    return {**ranks, "head_size": value, "rotated": need(c, "qk_rope_head_dim")}


def mlp(c: dict, kind: str | None) -> dict:
    """The dense MLP, or the mixture and where it stands."""
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    experts = next((c[name] for name in names if c.get(name)), 0)
    if not experts:
        dense = 4 * need(c, "n_embd") if kind == "gpt2" and not c.get("n_inner") else c.get("n_inner")
        return {"mlp_width": dense or count(c, "intermediate_size"), "mlps": ("dense",)}
    one = c.get("moe_intermediate_size") or count(c, "intermediate_size")
    shared = (c.get("n_shared_experts") or 0) * one or c.get("shared_expert_intermediate_size") or 0
    return {
        "mlp_width": c.get("intermediate_size_mlp") or count(c, "intermediate_size"),
        "experts": experts,
        "top_k": count(c, "num_experts_per_tok"),
        "expert_width": one,
        "shared_width": one if kind == "llama4_text" else shared,
        "dense_first": c.get("first_k_dense_replace") or 0,
        "mlps": tuple("experts" if sparse(c, layer) else "dense" for layer in range(count(c, "num_hidden_layers"))),
    }


def sparse(c: dict, layer: int) -> bool:
    """Whether a layer has experts, by whichever rule the file states."""
    if "expert_layer_period" in c:
        return layer % c["expert_layer_period"] == need(c, "expert_layer_offset")
    if c.get("moe_layers") is not None:
        return layer in c["moe_layers"]
    step = c.get("interleave_moe_layer_step") or c.get("decoder_sparse_step") or 1
    return (layer + 1) % step == 0 and layer not in (c.get("mlp_only_layers") or ())


def windows(c: dict, kind: str | None, notes: list[str]) -> tuple[int | None, ...]:
    """Keys that each layer sees, by the list of layer types, or by the rule of the model type."""
    width = c.get("sliding_window") or c.get("attention_chunk_size")
    if not width or c.get("use_sliding_window") is False:
        return (None,)
    if types := c.get("layer_types"):
        return tuple(width if name in LOCAL else None for name in types)
    n_layer = count(c, "num_hidden_layers")
    rotated = c.get("no_rope_layers") or [(layer + 1) % 4 for layer in range(n_layer)]  # 0: sees all
    rules = {
        "gemma2": lambda layer: layer % 2 == 0,
        "gpt_oss": lambda layer: layer % 2 == 0,
        "gemma3_text": lambda layer: (layer + 1) % c.get("sliding_window_pattern", 6) != 0,
        "llama4_text": lambda layer: rotated[layer] != 0,
        "qwen2": lambda layer: layer >= c.get("max_window_layers", 0),
        "qwen3": lambda layer: layer >= c.get("max_window_layers", 0),
    }
    if kind not in rules and kind != "mistral":
        notes.append(f"the file has no layer_types: sliding_window={width} is taken for every layer")
    local = rules.get(kind, lambda layer: True)
    return tuple(width if local(layer) else None for layer in range(n_layer))


def recurrent(c: dict, kind: str | None) -> dict:
    """The layers without a growing cache, of the two hybrids that are known here."""
    layers = range(c.get("num_hidden_layers") or 0)
    if kind == "jamba":
        period, offset = need(c, "attn_layer_period"), need(c, "attn_layer_offset")
        rank = need(c, "mamba_dt_rank")
        parts = {"inner": need(c, "mamba_expand") * need(c, "hidden_size"), "state": need(c, "mamba_d_state")}
        parts |= {"conv": need(c, "mamba_d_conv"), "step_rank": -(-c["hidden_size"] // 16) if rank == "auto" else rank}
        mixers = tuple("attention" if i % period == offset else "mamba" for i in layers)
        return {"mamba": parts, "mixers": mixers}
    if kind == "qwen3_next":
        parts = {"key_heads": "linear_num_key_heads", "value_heads": "linear_num_value_heads"}
        parts |= {"key_size": "linear_key_head_dim", "value_size": "linear_value_head_dim"}
        parts |= {"conv": "linear_conv_kernel_dim"}
        types = c.get("layer_types") or [
            "full_attention" if (i + 1) % (c.get("full_attention_interval") or 4) == 0 else "" for i in layers
        ]
        mixers = tuple("attention" if name == "full_attention" else "delta" for name in types)
        return {"delta": {key: need(c, name) for key, name in parts.items()}, "mixers": mixers}
    return {}
