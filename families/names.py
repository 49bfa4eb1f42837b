"""Where each tensor of a Hugging Face class goes, as data: stored name -> 'target part change', or several of those.

A part is a place within the target, by default all of it; a change is what the numbers go through on the way, by
default nothing. Both are in layout.py. Names of a layer stand without the layer's own start; `{}` is an expert.
"""

from dataclasses import dataclass, field, replace

Table = dict[str, str | tuple[str, ...]]


def both(stored: str, target: str) -> Table:
    """A matrix and its bias. `target` may name part and change."""
    name, _, how = target.partition(" ")
    return {f"{stored}.{kind}": f"{name}.{kind} {how}".strip() for kind in ("weight", "bias")}


def norms(names: dict[str, str], change: str = "") -> Table:
    """RMSNorms by stored and our name."""
    how = f" all {change}" if change else ""
    return {f"{stored}.weight": f"{target}.gain{how}" for stored, target in names.items()}


def layer_norms(names: dict[str, str]) -> Table:
    return {key: value for stored, target in names.items() for key, value in both(stored, target).items()}


@dataclass(frozen=True)
class Names:
    """The tensors of one class. What the model has no target for is not expected; what is left over is refused."""

    outer: Table
    layer: str  # the start of a layer's names
    inner: Table  # of each layer
    dense: Table = field(default_factory=dict)  # of the layers before the experts begin
    fused: Table = field(default_factory=dict)  # of the others, all experts in one tensor
    each: Table = field(default_factory=dict)  # the same with a tensor for each expert, the second `{}`
    aliases: dict[str, str] = field(default_factory=dict)  # pattern -> how the same tensor is called above
    ignored: tuple[str, ...] = ()  # patterns of tensors that say nothing
    ahead: bool = False  # whether layers behind the last may be stored, which only look further ahead


ROPE_BUFFERS = (r"\.rotary_emb\.inv_freq$",)
OLD_BUFFERS = (r"\.attn\.(bias|masked_bias)$",)
OLD_PREFIX = {r"^(?!transformer\.|lm_head\.)": "transformer."}
HEAD = {"lm_head.weight": "unembedding.weight"}
CONV = {  # matrices stored the other way round
    **both("attn.c_attn", "attention.qkv all turned"), **both("attn.c_proj", "attention.out all turned"),
    **both("mlp.c_fc", "mlp.up all turned"), **both("mlp.c_proj", "mlp.down all turned"),
}  # fmt: skip
GPT1 = Names(
    {
        "transformer.tokens_embed.weight": "embedding.weight",
        "transformer.positions_embed.weight": "position.table.weight",
    },
    "transformer.h.",
    CONV | layer_norms({"ln_1": "attention_norm", "ln_2": "mlp_norm"}),
    aliases=OLD_PREFIX,
    ignored=OLD_BUFFERS,
)  # fmt: skip
GPT2 = Names(
    {
        "transformer.wte.weight": "embedding.weight", "transformer.wpe.weight": "position.table.weight", **HEAD,
        **both("transformer.ln_f", "final_norm"),
    },
    "transformer.h.",
    GPT1.inner,
    aliases=OLD_PREFIX,
    ignored=OLD_BUFFERS,
)  # fmt: skip
GPTJ = Names(
    {
        "transformer.wte.weight": "embedding.weight", **both("transformer.ln_f", "final_norm"), **HEAD,
        "lm_head.bias": "logit_bias",
    },
    "transformer.h.",
    {
        **both("ln_1", "norm"),
        "attn.q_proj.weight": "attention.qkv.weight q side_by_side",
        "attn.k_proj.weight": "attention.qkv.weight k side_by_side",
        "attn.v_proj.weight": "attention.qkv.weight v", "attn.out_proj.weight": "attention.out.weight",
        **both("mlp.fc_in", "mlp.up"), **both("mlp.fc_out", "mlp.down"),
    },
    aliases=OLD_PREFIX,
    ignored=OLD_BUFFERS,
)  # fmt: skip
NEOX = Names(
    {"gpt_neox.embed_in.weight": "embedding.weight", **both("gpt_neox.final_layer_norm", "final_norm"), **HEAD},
    "gpt_neox.layers.",
    {
        **layer_norms({"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}),
        **{
            f"attention.query_key_value.{kind}": tuple(
                f"attention.qkv.{kind} {part} {part}_of_each" for part in ("q", "k", "v")
            )
            for kind in ("weight", "bias")
        },
        **both("attention.dense", "attention.out"), **both("mlp.dense_h_to_4h", "mlp.up"),
        **both("mlp.dense_4h_to_h", "mlp.down"),
    },
    aliases={r"^embed_out\.": "lm_head."},
    ignored=(r"\.attention\.(bias|masked_bias)$", r"\.rotary_emb\.inv_freq$"),
)  # fmt: skip

OUTER = {"model.embed_tokens.weight": "embedding.weight", "model.norm.weight": "final_norm.gain", **HEAD}
ATTENTION = {
    **both("self_attn.q_proj", "attention.qkv q"), **both("self_attn.k_proj", "attention.qkv k"),
    **both("self_attn.v_proj", "attention.qkv v"), **both("self_attn.o_proj", "attention.out"),
    "self_attn.sinks": "attention.sinks",
}  # fmt: skip
SWIGLU = {
    "mlp.gate_proj.weight": "mlp.gate_up.weight first", "mlp.up_proj.weight": "mlp.gate_up.weight second",
    "mlp.down_proj.weight": "mlp.down.weight",
}  # fmt: skip
BEFORE = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}
AROUND = {
    "input_layernorm": "attention_norm", "post_attention_layernorm": "attention_out_norm",
    "pre_feedforward_layernorm": "mlp_norm", "post_feedforward_layernorm": "mlp_out_norm",
}  # fmt: skip
QK = {"self_attn.q_norm": "attention.q_norm", "self_attn.k_norm": "attention.k_norm"}
LLAMA = Names(OUTER, "model.layers.", ATTENTION | SWIGLU | norms(BEFORE), ignored=ROPE_BUFFERS)
QWEN3 = Names(OUTER, "model.layers.", LLAMA.inner | norms(QK), ignored=ROPE_BUFFERS)
OLMO2 = Names(
    OUTER,
    "model.layers.",
    ATTENTION
    | SWIGLU
    | norms({stored: f"{target}.norm" for stored, target in QK.items()})
    | norms({"post_attention_layernorm": "attention_norm", "post_feedforward_layernorm": "mlp_norm"}),
    ignored=ROPE_BUFFERS,
)
GEMMA = Names(
    OUTER | {"model.norm.weight": "final_norm.gain all plus_one"},
    "model.layers.",
    ATTENTION | SWIGLU | norms(AROUND | QK, "plus_one"),
    ignored=ROPE_BUFFERS,
)
EACH = {
    "mlp.experts.{}.gate_proj.weight": "mlp.gate_up.weight expert_first turned",
    "mlp.experts.{}.up_proj.weight": "mlp.gate_up.weight expert_second turned",
    "mlp.experts.{}.down_proj.weight": "mlp.down.weight expert turned",
}
FUSED = {
    "mlp.experts.gate_up_proj": "mlp.gate_up.weight all turned",
    "mlp.experts.down_proj": "mlp.down.weight all turned",
}
ROUTER = {
    "mlp.gate.weight": "mlp.router.scores.weight", "mlp.gate.e_score_correction_bias": "mlp.router.bias",
}  # fmt: skip
MIXTRAL = Names(
    OUTER,
    "model.layers.",
    ATTENTION | norms(BEFORE) | ROUTER,
    fused=FUSED,
    each=EACH,
    aliases={
        r"\.block_sparse_moe\.gate\.": ".mlp.gate.",
        r"\.block_sparse_moe\.experts\.(\d+)\.w1\.": r".mlp.experts.\1.gate_proj.",
        r"\.block_sparse_moe\.experts\.(\d+)\.w2\.": r".mlp.experts.\1.down_proj.",
        r"\.block_sparse_moe\.experts\.(\d+)\.w3\.": r".mlp.experts.\1.up_proj.",
    },
    ignored=ROPE_BUFFERS,
)
GPT_OSS = Names(
    OUTER,
    "model.layers.",
    ATTENTION | norms(BEFORE) | both("mlp.router", "mlp.router.scores"),
    fused={
        "mlp.experts.gate_up_proj": "mlp.gate_up.weight all even_then_odd",
        "mlp.experts.gate_up_proj_bias": "mlp.gate_up.bias expert_row even_then_odd",
        "mlp.experts.down_proj": "mlp.down.weight",
        "mlp.experts.down_proj_bias": "mlp.down.bias expert_row",
    },
    ignored=ROPE_BUFFERS,
)
SHARED = {
    stored.replace("mlp.", "mlp.shared_experts."): target.replace("mlp.", "mlp.shared.")
    for stored, target in SWIGLU.items()
}
MLA = {
    "self_attn.q_proj.weight": "attention.query.weight all tail",
    "self_attn.q_a_proj.weight": "attention.query.compress.weight",
    "self_attn.q_a_layernorm.weight": "attention.query.norm.gain",
    "self_attn.q_b_proj.weight": "attention.query.read.weight all tail",
    "self_attn.kv_a_proj_with_mqa.weight": "attention.compress.weight all key_tail",
    "self_attn.kv_a_layernorm.weight": "attention.norm.gain",
    "self_attn.kv_b_proj.weight": ("attention.read_key.weight all key", "attention.read_value.weight all value"),
    "self_attn.o_proj.weight": "attention.out.weight",
}
DEEPSEEK_V2 = Names(
    OUTER,
    "model.layers.",
    MLA | norms(BEFORE),
    dense=SWIGLU,
    fused=FUSED | ROUTER | SHARED,
    each=EACH | ROUTER | SHARED,
    ignored=ROPE_BUFFERS,
)

DEEPSEEK_V3 = replace(DEEPSEEK_V2, ahead=True)

NAMES = {  # by `model_type`
    "openai-gpt": GPT1, "gpt2": GPT2, "gptj": GPTJ, "gpt_neox": NEOX, "llama": LLAMA, "mistral": LLAMA, "qwen2": LLAMA,
    "qwen3": QWEN3, "olmo2": OLMO2, "gemma2": GEMMA, "gemma3_text": GEMMA, "mixtral": MIXTRAL, "gpt_oss": GPT_OSS,
    "deepseek_v2": DEEPSEEK_V2, "deepseek_v3": DEEPSEEK_V3,
}  # fmt: skip
