"""The post's own lines, number for number, from data/published_models.yaml and data/scaling_laws.yaml."""

from dataclasses import replace

from calculators import counts
from calculators.laws import TRAIN, Law, fits, same_loss
from calculators.models import Model, published

CACHES = ("gpt-3", "llama-2-70b", "llama-3-8b")
MIXTURES = ("mixtral-8x7b", "deepseek-v2")
SIDE_BY_SIDE = (
    "gpt-3", "llama-2-70b", "llama-3-8b", "gemma-3-27b", "gpt-oss-120b", "qwen3-next-80b-a3b", "deepseek-v3", "jamba",
)  # fmt: skip
BYTES = 2  # 16 bit
BUDGETS = (1e21, 1e23, 1e25)  # training FLOPs
SIZES = tuple(2.0**n * 1e9 for n in range(1, 9))  # parameters of the curves
EIGHT_B = (8e9, 15e12)  # Llama 3 8B: parameters and tokens, both rounded as the post has them


def layout(m: Model) -> str:
    if m.kv_rank:
        return "MLA"
    names = {m.n_head: "MHA", 1: "MQA"}
    return names.get(m.n_kv_head, f"GQA, {m.n_kv_head} groups")


def named(m: Model) -> str:
    return f"{m.label} ({layout(m)})"


def token_bytes(m: Model) -> int:
    return BYTES * m.n_layer * counts.kept(m)


def full_bytes(m: Model) -> int:
    return BYTES * m.n_layer * counts.ungrouped(m)


def memory_numbers() -> dict:
    """What the lines are made of, unrounded."""
    caches = [published(name) for name in (*CACHES, "deepseek-v2", "llama-3-70b", "deepseek-v3")]
    sizes = {name: counts.size(published(name)) for name in MIXTURES}
    return {
        "cache": {
            m.label: {"bytes_per_token": token_bytes(m), "bytes_per_token_ungrouped": full_bytes(m)} for m in caches
        },
        "attention_weights_per_layer": {
            m.label: {"weights": counts.attention(m)[1], "with_mha": counts.attention(ungroup(m))[1]}
            for m in caches[: len(CACHES)]
        },
        "mixtures": {published(n).label: {"parameters": s.total, "used_per_token": s.active} for n, s in sizes.items()},
    }


def ungroup(m: Model) -> Model:
    return replace(m, n_kv_head=m.n_head)


def memory_lines() -> list[str]:
    """The six lines. The mixtures' parameters are counted, then rounded to whole billions as in the post."""
    lines = []
    for m in map(published, CACHES):
        mine, full = (counts.attention(one)[1] / 1e6 for one in (m, ungroup(m)))
        head = f"{named(m):30s} KV cache {token_bytes(m) / 1024:7.0f} KiB per token; attention weights per layer "
        lines.append(f"{head}{mine:6.1f}M (with full MHA: {full:6.1f}M)")
    m = published("deepseek-v2")
    head = f"{named(m):30s} KV cache {token_bytes(m) / 1024:7.0f} KiB per token; the same heads with MHA: "
    lines.append(f"{head}{full_bytes(m) / 1024:,.0f} KiB, {full_bytes(m) / token_bytes(m):.0f} times as much")
    for m in map(published, MIXTURES):
        s = counts.size(m)
        total, used = (float(round(count / 1e9)) for count in (s.total, s.active))
        head = f"{m.label:30s} {total:5.1f}B parameters, {used:.1f}B used per token ({s.active / s.total:.0%}): "
        lines.append(f"{head}per-token FLOPs of a {used:.0f}B model, memory of a {total:.0f}B one")
    return lines


def memory_rest() -> list[str]:
    """The other sums that the documents print, and what the six lines round."""
    gpt3, big, v3 = map(published, ("gpt-3", "llama-3-70b", "deepseek-v3"))
    long = 128 * 1024
    exact = [(m.label, counts.size(m)) for m in map(published, MIXTURES)]
    rounded = "; ".join(f"{name} {s.total / 1e9:.2f}B, {s.active / 1e9:.2f}B used" for name, s in exact)
    return [
        f"Counted from the configurations, before rounding: {rounded} (both tables of tokens included).",
        f"{gpt3.label}, 4,096 tokens: {token_bytes(gpt3) * 4096 / 1024**3:.0f} GiB",
        f"{big.label}, {long:,} tokens: {token_bytes(big) * long / 1e9:.0f} GB; with a key and a value for each of its "
        f"{big.n_head} query heads {full_bytes(big) * long / 1e9:.0f} GB",
        f"{v3.label}: {token_bytes(v3) / 1000:.0f} KB per token over {v3.n_layer} layers",
    ]


def law_lines() -> list[str]:
    """The lines of chinchilla.py: advice at three budgets, Llama 3 8B under each fit, the three curves."""
    known = fits()
    lines = [advice(law) for law in known.values()]
    params, tokens = EIGHT_B
    spent = TRAIN * params * tokens
    lines += ["", f"Llama 3 8B: {tokens / params:,.0f} tokens per parameter, C = {spent:.1e} FLOPs"]
    lines += [f"  {law.label:21s} {beside(law, params, tokens)}" for law in known.values()]
    return lines + [curve_line(law, spent) for law in known.values()]


def law_numbers() -> dict:
    """What the lines are made of, unrounded."""
    params, tokens = EIGHT_B
    spent = TRAIN * params * tokens
    return {
        law.label: {
            "tokens_per_parameter": {f"{C:.0e}": law.ratio(C) for C in BUDGETS},
            "llama_3_8b": {"flops": spent, "loss": law.loss(params, tokens), "optimal": law.optimal(spent),
                           "same_loss_share": same_loss(law, law.loss(params, tokens)) / spent},
            "curve": {f"{N:.0e}": law.loss(N, spent / (TRAIN * N)) for N in SIZES},
        }
        for law in fits().values()
    }  # fmt: skip


def advice(law: Law) -> str:
    budgets = " / ".join(f"{C:.0e}".replace("e+", "e") for C in BUDGETS)
    ratios = " / ".join(f"{law.ratio(C):5.1f}" for C in BUDGETS)
    return f"{law.label:21s} tokens per parameter at C = {budgets} FLOPs: {ratios}"


def beside(law: Law, params: float, tokens: float) -> str:
    """One trained model against the best use of its compute, and against the least compute for its loss."""
    spent, reached = TRAIN * params * tokens, law.loss(params, tokens)
    N, D = law.optimal(spent)
    least = same_loss(law, reached)
    smaller, _ = law.optimal(least)
    name, share = f"{params / 1e9:.0f}B", least / spent
    return (
        f"same compute: optimal {N / 1e9:3.0f}B on {D / 1e12:4.1f}T tokens, loss {law.loss(N, D):.3f} vs the {name}'s "
        f"{reached:.3f}; same loss: a {smaller / 1e9:.0f}B model with {share:.2f}x the {name}'s training compute"
    )


def curve_line(law: Law, spent: float) -> str:
    points = (f"{N / 1e9:.0f}:{law.loss(N, spent / (TRAIN * N)):.4f}" for N in SIZES)
    return f"curve {law.label}: {' '.join(points)}"
