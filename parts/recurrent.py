"""Layers that keep a state of fixed size in place of keys and values, for the attention seam.

A state S (key size, value size) per head forgets, takes in and is read out, symbol by symbol. Computed in
chunks: inside one, scores as in attention without the softmax; from one to the next, the state alone. All in
float32, since products of many decays need it. Places are known by the order of the symbols; nothing is rotated.
"""

import torch
from torch import nn
from torch.nn import functional as F

from config import ModelConfig
from parts.linear import Linear, require_unbiased
from parts.norms import RMSNorm

CHUNK = 32  # symbols
KERNEL = 4  # symbols that the short convolution sees


class GatedDelta(nn.Module):
    """S forgets by a factor, then replaces what it holds under a key instead of adding to it (arXiv:2412.06464).

    In the form of Qwen3-Next: short convolution and silu on queries, keys and values; queries and keys of
    length 1; the normalized output gated by silu. Keys are half as wide as a head of attention. Width rule: values
    are as wide as leaves the weights of multi-head attention, 4 D^2.
    """

    def __init__(self, c: ModelConfig, layer: int):
        super().__init__()
        require_unbiased(c, "qkv", "model.attention=delta")
        D, self.n_head, self.key = c.d_model, c.n_head, max(1, c.head_size // 2)
        left = 4 * D * D - 2 * D * self.n_head - 2 * self.n_head * self.key * (D + KERNEL)
        self.value = max(1, round(left / (self.n_head * (3 * D + KERNEL))))
        self.sizes = [self.n_head * size for size in (self.key, self.key, self.value)]
        self.qkv = Linear(D, sum(self.sizes))
        self.gate = Linear(D, self.n_head * self.value)
        self.rates = Linear(D, 2 * self.n_head)
        self.conv = ShortConv(sum(self.sizes))
        self.decay = Decay(self.n_head)
        self.norm = RMSNorm(self.value, c.norm_eps)
        self.out = Linear(self.n_head * self.value, D, writes=True)

    def forward(self, x, position):
        q, k, v = (self.heads(part) for part in self.conv(self.qkv(x), position).split(self.sizes, dim=-1))
        write, forget = self.rates(x).transpose(1, 2).float().chunk(2, dim=1)  # (B, heads, T)
        with torch.autocast(x.device.type, enabled=False):
            q, k = F.normalize(q.float(), dim=-1) * self.key**-0.5, F.normalize(k.float(), dim=-1)
            inputs = q, k, v.float(), write.sigmoid(), self.decay(forget)[0]
            y = position.carry(gated_delta, gated_delta_step, *inputs)
        y = self.norm(y) * F.silu(self.heads(self.gate(x)))
        return self.out(y.transpose(1, 2).flatten(2))

    def heads(self, x):
        return x.unflatten(-1, (self.n_head, -1)).transpose(1, 2)

    def flops(self, T: int) -> int:
        """Inside a chunk: keys on keys, queries on keys, scores on values; on the state: taken, read and kept.

        The triangular system of a chunk is no product, but its gradient is one, of three that each product counts.
        """
        inside, across = products(T)
        solved = (self.key + self.value) / 3
        per_head = inside * (2 * self.key + self.value + solved) + across * 3 * self.key * self.value
        return round(2 * self.n_head * per_head)

    def kv_numbers(self, T: int) -> float:
        """The state and what the convolution still sees, spread over the symbols of a text."""
        return (self.n_head * self.key * self.value + (KERNEL - 1) * sum(self.sizes)) / T


class StateSpace(nn.Module):
    """S forgets and takes in by a step size that the symbol chooses: Mamba-2 (Dao & Gu 2024, arXiv:2405.21060).

    One pair of input and output directions serves all heads. Width rule: values are as wide as the stream, and
    the state is as wide as leaves the weights of multi-head attention, 4 D^2.
    """

    def __init__(self, c: ModelConfig, layer: int):
        super().__init__()
        require_unbiased(c, "qkv", "model.attention=ssm")
        D, self.n_head, self.value = c.d_model, c.n_head, c.d_model // c.n_head
        self.state = max(1, round((D * D - D * (self.n_head + KERNEL + 1)) / (2 * (D + KERNEL))))
        self.sizes = [D, self.state, self.state]
        self.mixed = Linear(D, sum(self.sizes))
        self.gate = Linear(D, D)
        self.rates = Linear(D, self.n_head)
        self.conv = ShortConv(sum(self.sizes))
        self.decay = Decay(self.n_head)
        self.skip = nn.Parameter(torch.ones(self.n_head))
        self.norm = RMSNorm(D, c.norm_eps)
        self.out = Linear(D, D, writes=True)

    def forward(self, x, position):
        v, k, q = self.conv(self.mixed(x), position).split(self.sizes, dim=-1)
        v = v.unflatten(-1, (self.n_head, self.value)).transpose(1, 2).float()  # (B, heads, T, value)
        forget = self.rates(x).transpose(1, 2).float()
        with torch.autocast(x.device.type, enabled=False):
            log_decay, step = self.decay(forget)
            inputs = q.unsqueeze(1).float(), k.unsqueeze(1).float(), v * step.unsqueeze(-1), log_decay
            y = position.carry(state_space, state_space_step, *inputs)
        y = (y + self.skip.view(-1, 1, 1) * v).transpose(1, 2).flatten(2)
        return self.out(self.norm(y * F.silu(self.gate(x))))

    def flops(self, T: int) -> int:
        inside, across = products(T)
        heads = self.n_head * self.value
        return round(2 * (inside * (self.state + heads) + across * 2 * self.state * heads))

    def kv_numbers(self, T: int) -> float:
        return (self.n_head * self.state * self.value + (KERNEL - 1) * sum(self.sizes)) / T


class ShortConv(nn.Module):
    """Each channel is a weighted sum of its last KERNEL values, then silu: (B, T, channels), causal."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(KERNEL, channels))

    def init(self, generator, n_layer: int) -> None:
        nn.init.uniform_(self.weight, -(KERNEL**-0.5), KERNEL**-0.5, generator=generator)  # as torch's own

    def forward(self, x, position):
        padded, T = position.before(x, KERNEL - 1), x.shape[1]
        return F.silu(sum(padded[:, i : i + T] * self.weight[i] for i in range(KERNEL)))


class Decay(nn.Module):
    """How much of the state a symbol leaves: exp(-rate * step), its step size softplus(input + shift).

    Rates start uniform in [1, 16], steps log-uniform in [0.001, 0.1] (arXiv:2405.21060): memories of many lengths.
    """

    def __init__(self, n_head: int):
        super().__init__()
        self.log_rate, self.shift = nn.Parameter(torch.empty(n_head)), nn.Parameter(torch.empty(n_head))

    def init(self, generator, n_layer: int) -> None:
        with torch.no_grad():
            self.log_rate.uniform_(1, 16, generator=generator).log_()
            step = self.shift.uniform_(-3, -1, generator=generator).mul_(2.302585).exp_()
            step.add_((-torch.expm1(-step)).log())  # the inverse of softplus

    def forward(self, x):
        """x (B, heads, T) -> logarithm of the decay, step size, each (B, heads, T)."""
        step = F.softplus(x + self.shift.unsqueeze(-1))
        return -self.log_rate.exp().unsqueeze(-1) * step, step


def gated_delta(q, k, v, write, log_decay):
    """For each symbol: S = decay S; S = S + write k (v - S^T k)^T; output S^T q. Returns (B, heads, T, value).

    q, k (B, heads, T, key), v (B, heads, T, value), write and log_decay (B, heads, T). What the symbols of a chunk
    write depends on what those before it wrote: a triangular system, solved at once (Yang et al. 2024,
    arXiv:2406.06484).
    """
    T = q.shape[-2]
    q, k, v, write, log_decay = (chunks(x) for x in (q, k, v, write.unsqueeze(-1), log_decay.unsqueeze(-1)))
    since, left = decays(log_decay)
    overlap = (k @ k.mT * left * write).tril(-1)  # (B, heads, chunks, C, C)
    seen = torch.cat([v, k * since], dim=-1) * write
    seen = torch.linalg.solve_triangular(overlap, seen, upper=False, unitriangular=True)
    new, taken = seen.split([v.shape[-1], k.shape[-1]], dim=-1)
    scores, read, kept = q @ k.mT * left, q * since, (k * left[..., -1:, :].mT).mT
    state, written = 0.0, new[:, :, 0]
    outputs = [scores[:, :, 0] @ written]
    for i in range(1, q.shape[2]):
        state = since[:, :, i - 1, -1:] * state + kept[:, :, i - 1] @ written
        written = new[:, :, i] - taken[:, :, i] @ state
        outputs.append(scores[:, :, i] @ written + read[:, :, i] @ state)
    return torch.cat(outputs, dim=2)[:, :, :T]


def state_space(q, k, v, log_decay):
    """For each symbol: S = decay S + k v^T; output S^T q. Returns (B, heads, T, value).

    q, k (B, 1, T, state) shared by all heads, v (B, heads, T, value), log_decay (B, heads, T).
    """
    T = v.shape[-2]
    q, k, v, log_decay = (chunks(x) for x in (q, k, v, log_decay.unsqueeze(-1)))
    since, left = decays(log_decay)
    inside = (q @ k.mT * left) @ v
    added = k[:, :, :-1].mT @ (v * left[..., -1:, :].mT)[:, :, :-1]
    state, outputs = 0.0, [inside[:, :, 0]]
    for i in range(1, v.shape[2]):
        state = since[:, :, i - 1, -1:] * state + added[:, :, i - 1]
        outputs.append(inside[:, :, i] + q[:, :, i] @ state * since[:, :, i])
    return torch.cat(outputs, dim=2)[:, :, :T]


def gated_delta_step(state, q, k, v, write, log_decay):
    """One symbol of `gated_delta`: state (B, heads, key, value) or 0, the rest without T -> output, next state."""
    state = state * log_decay.exp()[..., None, None]
    new = write.unsqueeze(-1) * (v - (state * k.unsqueeze(-1)).sum(-2))
    state = state + k.unsqueeze(-1) * new.unsqueeze(-2)
    return (state * q.unsqueeze(-1)).sum(-2), state


def state_space_step(state, q, k, v, log_decay):
    """One symbol of `state_space`: state (B, heads, state, value) or 0, the rest without T -> output, next state."""
    state = state * log_decay.exp()[..., None, None] + k.unsqueeze(-1) * v.unsqueeze(-2)
    return (state * q.unsqueeze(-1)).sum(-2), state


def products(T: int) -> tuple[float, float]:
    """For a symbol, with whom it is multiplied inside its chunk, and how often the state is passed on."""
    C = min(CHUNK, T)
    n = -(-T // C)
    return n * C * C / T, (n - 1) * C / T


def chunks(x):
    """(B, heads, T, n) -> (B, heads, chunks, C, n), zeros behind the end; C is CHUNK, or T where that is less."""
    C = min(CHUNK, x.shape[-2])
    return F.pad(x, (0, 0, 0, -x.shape[-2] % C)).unflatten(2, (-1, C))


def decays(log_decay):
    """From (..., C, 1): the decay since the chunk began (..., C, 1), and what is left at i of j (..., C, C), j <= i."""
    total = log_decay.cumsum(-2)
    apart = total - total.mT
    future = torch.ones_like(apart, dtype=torch.bool).triu(1)
    return total.exp(), apart.masked_fill(future, float("-inf")).exp()


ATTENTIONS = {"delta": GatedDelta, "ssm": StateSpace}
