"""What a swap may turn, and what values a knob may have. What fits together is checked where it is built."""

import os
from collections.abc import Callable
from operator import attrgetter

from config import Config, GenerateConfig, UserError

# What one swap may turn, by the seam that it names in `about`. A new seam is a new line here.
# fmt: off
SEAMS = {
    "baseline": (),
    "wiring": ("model.wiring",),
    "norm": ("model.norm", "model.norm_eps", "model.qk_norm", "model.qk_norm_over"),
    "mlp": ("model.mlp", "model.mlp_width"),
    "attention": (
        "model.attention", "model.n_kv_head", "model.windows", "model.window", "model.sinks", "model.latent_width",
        "model.sparse_keys", "model.index_heads", "model.sparse_block", "model.sparse_blocks", "model.sparse_window",
        "model.head_width", "model.value_width", "model.query_width", "model.latent_eps", "model.score_scale",
    ),
    "position": (
        "model.position", "model.rope_base", "model.nope_every", "model.rope_scaling", "model.rope_factor",
        "model.rope_base_local", "model.rotated", "model.rope_trained", "model.rope_fast", "model.rope_slow",
        "model.rope_gain", "model.rope_whole", "model.wave_height",
    ),
    "experts": (
        "model.mlp", "model.mlp_width", "model.n_experts", "model.top_k", "model.router", "model.balance_weight",
        "model.bias_rate", "model.n_shared", "model.gating", "model.gate_sum", "model.gate_scale",
        "model.expert_groups", "model.top_groups", "model.first_dense", "model.dense_width",
    ),
    "stability": ("model.score_softcap", "model.logit_softcap", "train.z_loss"),
    "bias": ("model.bias",),
    "embedding": ("model.embedding_power",),
    "tying": ("model.tied",),
    "dropout": ("model.dropout",),
    "loss": ("train.label_smoothing",),
    "objective": ("model.predict_ahead", "train.ahead_weight"),
    "optimizer": ("train.optimizer",),
    "schedule": ("train.schedule", "train.warmup", "train.horizon"),
    "symbols": ("text.kind", "text.bpe_vocab"),
}
# fmt: on


def check(c: Config) -> None:
    """Raises UserError, naming the key and what is allowed, for a number outside its range."""
    least = {  # key -> smallest value
        "seed": 0, "model.n_layer": 1, "model.n_head": 1, "model.d_model": 1, "model.context": 1, "model.mlp_width": 1,
        "train.steps": 0, "train.batch_size": 1, "train.warmup": 0, "train.weight_decay": 0, "train.log_every": 1,
        "train.save_every": 1, "train.z_loss": 0, "train.ahead_weight": 0, "eval.context": 1, "eval.stride": 1,
        "eval.batch_size": 1, "machine.threads": 1, "machine.pack": 1, "model.n_kv_head": 1, "model.window": 1,
        "model.nope_every": 1, "model.rope_factor": 1, "model.balance_weight": 0, "model.bias_rate": 0,
        "model.latent_width": 1, "model.sparse_keys": 1, "model.index_heads": 1, "model.sparse_block": 1,
        "model.sparse_window": 1, "model.head_width": 1, "model.first_dense": 0, "model.dense_width": 1,
        "model.rotated": 2, "model.rope_trained": 1, "model.rope_slow": 0, "model.n_shared": 1,
        "model.expert_groups": 1, "model.top_groups": 1, "model.query_width": 1, "model.value_width": 1,
    }  # fmt: skip
    rules = [(key, lambda v, low=low: v is None or v >= low, f"at least {low}") for key, low in least.items()]
    positive = ("model.norm_eps", "model.rope_base", "train.lr", "train.grad_clip")
    positive += ("model.score_softcap", "model.logit_softcap", "model.score_scale", "model.rope_base_local")
    positive += ("model.rope_gain", "model.wave_height", "model.latent_eps", "model.gate_scale")
    rules += [(key, lambda v: v is None or 0 < v < float("inf"), "above 0") for key in positive]
    shares = ("model.dropout", "train.beta1", "train.beta2", "train.label_smoothing")
    rules += [(key, lambda v: 0 <= v < 1, "in [0, 1)") for key in shares]
    rules += [
        ("train.checkpoints", lambda v: all(step >= 0 for step in v), "steps of at least 0"),
        (
            "machine.threads",
            lambda v: v <= (os.cpu_count() or 1),
            f"at most {os.cpu_count()}, the cores that are here",
        ),
        ("model.predict_ahead", lambda v: 0 <= v < c.model.context, f"in [0, model.context={c.model.context})"),
        ("model.rope_fast", lambda v: v > c.model.rope_slow, f"above model.rope_slow={c.model.rope_slow}"),
        ("train.warmup", lambda v: v <= max(c.train.steps, 0), f"at most train.steps={c.train.steps}"),
        ("train.horizon", lambda v: v is None or v >= c.train.steps, f"at least train.steps={c.train.steps}"),
        ("eval.stride", lambda v: v is None or v <= c.eval_context, f"at most the {c.eval_context} of a window"),
    ]
    require(c, rules)


def check_generate(c: GenerateConfig) -> None:
    """Raises UserError, naming the key and what is allowed."""
    rules = [
        ("run", bool, "the folder of a finished run"),
        ("prompt", bool, "a text to begin with"),
        ("prompt", lambda v: v.encode(errors="replace").decode() == v, "UTF-8"),
        ("tokens", lambda v: v >= 1, "at least 1"),
        ("seed", lambda v: v >= 0, "at least 0"),
        ("temperature", lambda v: 0 <= v < float("inf"), "at least 0"),
        ("top_k", lambda v: v is None or v >= 1, "at least 1"),
        ("top_p", lambda v: v is None or 0 < v <= 1, "in (0, 1]"),
    ]
    drawn = ("top_k", "top_p", "seed")
    rules += [(key, lambda v: v in (None, 0) or c.temperature, "left out at temperature=0: no draw") for key in drawn]
    require(c, rules)


def require(c: Config | GenerateConfig, rules: list[tuple[str, Callable, str]]) -> None:
    """Raises UserError for a knob that does not hold to its rule: key, test, what is allowed."""
    for key, holds, allowed in rules:
        value = attrgetter(key)(c)
        if not holds(value):
            raise UserError(f"{key}={value}: must be {allowed}")
