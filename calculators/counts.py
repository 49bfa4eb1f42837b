"""Exact counts from a configuration: parameters by part, numbers kept of a text, work of attention and MLP."""

from dataclasses import dataclass

from calculators.models import Model

PARTS = ("embedding", "positions", "attention", "recurrent", "mlp", "router", "norms", "unembedding")


@dataclass(frozen=True)
class Size:
    parts: dict[str, int]  # parameters, by PARTS
    active: int  # that one token passes through, the looked-up tables included

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def tables(self) -> int:
        return sum(self.parts[part] for part in ("embedding", "positions", "unembedding"))


def size(m: Model) -> Size:
    """Raises KeyError for a mixer that is not known here."""
    parts, idle = dict.fromkeys(PARTS, 0), 0
    for mixer, _, mlp in m.layers():
        kind, weights, norms = MIXERS[mixer](m)
        parts[kind] += weights
        parts["norms"] += norms + m.norms * norm(m)
        weights, router, unused = MLPS[mlp](m)
        parts["mlp"] += weights
        parts["router"] += router
        idle += unused
    parts["norms"] += norm(m)  # the final one
    parts["embedding"] = m.vocab * m.d_model
    parts["positions"] = m.positions * m.d_model
    parts["unembedding"] = 0 if m.tied else m.vocab * m.d_model
    return Size(parts, sum(parts.values()) - idle)


def norm(m: Model) -> int:
    return m.d_model * (2 if m.norm_bias else 1)


def attention(m: Model) -> tuple[str, int, int]:
    """(part, weights, gains of norms inside) of one layer with a key and a value per head or per group of heads."""
    if m.kv_rank:
        return latent_attention(m)
    q, kv = m.n_head * m.head_size, m.n_kv_head * m.head_size
    queries = q * (2 if m.attention_gate else 1)
    weights = m.d_model * (queries + 2 * kv) + q * m.d_model
    weights += {"": 0, "qkv": queries + 2 * kv, "all": queries + 2 * kv + m.d_model}[m.attention_bias]
    weights += m.n_head if m.sinks else 0
    return "attention", weights, {"": 0, "head": 2 * m.head_size, "width": q + kv}[m.qk_norm]


def latent_attention(m: Model) -> tuple[str, int, int]:
    """Keys and values are read from one latent per token (DeepSeek-AI 2024, arXiv:2405.04434)."""
    q, values = m.n_head * (m.head_size + m.rotated), m.n_head * m.head_size
    query = m.d_model * m.q_rank + m.q_rank * q if m.q_rank else m.d_model * q
    weights = query + m.d_model * (m.kv_rank + m.rotated) + m.kv_rank * 2 * values + values * m.d_model
    return "attention", weights, m.q_rank + m.kv_rank


def delta(m: Model) -> tuple[str, int, int]:
    d = m.delta
    keys, values = d.key_heads * d.key_size, d.value_heads * d.value_size
    read = m.d_model * (2 * keys + 2 * values + 2 * d.value_heads)  # q, k, v and output gate; step and decay
    weights = read + (2 * keys + values) * d.conv + 2 * d.value_heads + values * m.d_model
    return "recurrent", weights, d.value_size


def mamba(m: Model) -> tuple[str, int, int]:
    s = m.mamba
    read = m.d_model * 2 * s.inner + s.inner * (s.conv + 1)  # value and gate; the convolution with its bias
    steps = s.inner * (s.step_rank + 2 * s.state) + s.step_rank * s.inner + s.inner
    weights = read + steps + s.inner * s.state + s.inner + s.inner * m.d_model
    return "recurrent", weights, s.step_rank + 2 * s.state


def matrices(m: Model, width: int) -> int:
    """Weights of one MLP: three matrices where it is gated, else two."""
    count = 3 if m.gated else 2
    return count * m.d_model * width + (((count - 1) * width + m.d_model) if m.mlp_bias else 0)


def dense(m: Model) -> tuple[int, int, int]:
    """(weights, router, weights that a token does not use) of one layer."""
    return matrices(m, m.mlp_width), 0, 0


def mixture(m: Model) -> tuple[int, int, int]:
    one = matrices(m, m.expert_width)
    shared = matrices(m, m.shared_width) + (m.d_model if m.shared_gate else 0) if m.shared_width else 0
    router = m.d_model * m.experts + (m.experts if m.router_bias else 0)
    return m.experts * one + shared, router, (m.experts - m.top_k) * one


MIXERS = {"attention": attention, "delta": delta, "mamba": mamba}
MLPS = {"dense": dense, "experts": mixture}


def kept(m: Model) -> int:
    """Numbers that one attention layer keeps of a token: a key and a value per group of heads, or the latent."""
    return m.kv_rank + m.rotated if m.kv_rank else 2 * m.n_kv_head * m.head_size


def ungrouped(m: Model) -> int:
    """The same with a key and a value for every query head."""
    return 2 * m.n_head * m.head_size


def state(m: Model, mixer: str) -> int:
    """Numbers that a recurrent layer keeps, however long the text is."""
    if mixer == "delta":
        d = m.delta
        inputs = 2 * d.key_heads * d.key_size + d.value_heads * d.value_size
        return d.value_heads * d.key_size * d.value_size + inputs * (d.conv - 1)
    if mixer == "mamba":
        return m.mamba.inner * (m.mamba.state + m.mamba.conv - 1)
    return 0


def attention_work(m: Model, T: int) -> float:
    """FLOPs a token of scores and weighted sums, the mean over the T places of a causal text.

    Projections are weights and counted elsewhere; recurrent layers do not grow with T and are left out.
    """
    a_key = 2 * m.n_head * (2 * m.head_size + m.rotated)
    return sum(a_key * seen(T, window) for mixer, window, _ in m.layers() if mixer == "attention")


def seen(T: int, window: int | None) -> float:
    """Keys that a query sees, the mean over T places: about T/2, or the window less its first part."""
    return T / 2 if window is None or window >= T else window - window**2 / (2 * T)


def mlp_work(m: Model) -> int:
    """FLOPs a token of the MLPs that it passes through: 2 a weight."""
    each = [MLPS[mlp](m) for _, _, mlp in m.layers()]
    return 2 * sum(weights - unused for weights, _, unused in each)
