"""Mixtures of experts, for the MLP seam: many SwiGLUs, of which a symbol passes through a few.

Exact: every symbol reaches each expert that it chose, however uneven the load; none is dropped. Shapes are those
of the batch alone, so that a mixture compiles and stacks over seeds. N symbols, K choices of each, E experts.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from config import ModelConfig, UserError, lookup
from parts.linear import STD, Linear, biased
from parts.mlps import SwiGLU

BLOCKS = 2  # blocks of rows an expert has at an even load; an uneven load takes at most one more for each expert


class SoftmaxRouter(nn.Module):
    """Gates are the softmax over the chosen experts' logits (Jiang et al. 2024, arXiv:2401.04088).

    The load is balanced by a loss: E times the sum, over experts, of the share of choices times the mean
    probability; 1 at an even load (Fedus et al. 2021, arXiv:2101.03961, here for several choices).
    """

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.top_k, self.n_experts, self.weight = c.top_k, c.n_experts, c.balance_weight
        self.scores = Linear(c.d_model, c.n_experts, bias=biased(c, "out"))
        self.allowed, self.settle = allowed(c, best=1), Gates(c)

    def forward(self, x):
        """x (N, D) -> chosen experts (N, K), their gates (N, K)."""
        p = in_float32(self.scores, x).softmax(-1)
        gates, chosen = self.allowed(p).topk(self.top_k)
        load = shares(chosen, self.n_experts)
        self.extra_losses = {"balance": self.weight * self.n_experts * (load * p.mean(0)).sum()}
        self.statistics = evenness(load)
        return chosen, self.settle(gates)


class SigmoidRouter(nn.Module):
    """Gates are sigmoids, normalized over the chosen; a bias that no gradient moves decides the choice alone.

    After each update the bias falls by a fixed step for an expert with more than the mean load and rises for
    the others (DeepSeek-V3, arXiv:2412.19437; Wang et al. 2024, arXiv:2408.15664). DeepSeek-V3's very small
    loss per sequence is left out.
    """

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.top_k, self.n_experts, self.rate = c.top_k, c.n_experts, c.bias_rate
        self.scores = Linear(c.d_model, c.n_experts, bias=biased(c, "out"))
        self.allowed, self.settle = allowed(c, best=2), Gates(c)
        self.register_buffer("bias", torch.zeros(c.n_experts))
        self.register_buffer("load", torch.zeros(c.n_experts), persistent=False)  # since the last update

    def forward(self, x):
        """x (N, D) -> chosen experts (N, K), their gates (N, K)."""
        s = in_float32(self.scores, x).sigmoid()
        chosen = self.allowed(s.detach() + self.bias).topk(self.top_k).indices
        gates = s.gather(-1, chosen)
        load = shares(chosen, self.n_experts)
        if self.training:
            self.load.add_(load)
        self.statistics = evenness(load)
        return chosen, self.settle(gates)

    def after_step(self) -> None:
        self.bias.add_(self.rate * (self.load.mean(-1, keepdim=True) - self.load).sign())
        self.load.zero_()


class Gates(nn.Module):
    """What the gates of the chosen experts become: made to sum to 1 or left alone, times a factor."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.total, self.scale = sum_of if c.gate_sum else one, c.gate_scale

    def forward(self, gates):
        return gates / self.total(gates) * self.scale


def sum_of(gates):
    return gates.sum(-1, keepdim=True)


def one(gates):
    return 1.0


class BestGroups(nn.Module):
    """Scores (N, E), -inf outside the groups of experts whose `best` highest scores sum to most (arXiv:2412.19437)."""

    def __init__(self, groups: int, kept: int, best: int):
        super().__init__()
        self.groups, self.kept, self.best = groups, kept, best

    def forward(self, scores):
        grouped = scores.unflatten(-1, (self.groups, -1))
        chosen = grouped.topk(self.best).values.sum(-1).topk(self.kept).indices  # (N, kept)
        outside = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, chosen, False)
        return grouped.masked_fill(outside.unsqueeze(-1), float("-inf")).flatten(-2)


def allowed(c: ModelConfig, best: int) -> nn.Module:
    """What leaves the experts that a symbol may choose from. Raises UserError where they are too few."""
    if c.expert_groups == 1:
        return nn.Identity()
    size, rest = divmod(c.n_experts, c.expert_groups)
    if rest or size < best:
        raise UserError(f"model.expert_groups={c.expert_groups}: no equal groups of model.n_experts={c.n_experts}")
    if not c.top_k <= c.top_groups * size <= c.n_experts:
        raise UserError(f"model.top_groups={c.top_groups}: groups of {size} do not hold model.top_k={c.top_k}")
    return BestGroups(c.expert_groups, c.top_groups, best)


def swiglu(gate, up):
    return F.silu(gate) * up


def clipped(gate, up):
    """A sharper silu of what is clipped at 7, and the other branch clipped and moved by 1 (arXiv:2508.10925)."""
    gate = gate.clamp(max=7.0)
    return (up.clamp(-7.0, 7.0) + 1) * gate * torch.sigmoid(1.702 * gate)


ROUTERS = {"softmax": SoftmaxRouter, "sigmoid": SigmoidRouter}
GATINGS = {"swiglu": swiglu, "swiglu_clipped": clipped}


class Experts(nn.Module):
    """`top_k` of `n_experts` SwiGLUs for each symbol, mixed by their gates (Shazeer et al. 2017, arXiv:1701.06538).

    Width rule: the experts that a symbol passes through have the weights of the baseline's MLP together.
    Raises UserError for more choices than experts, or a single one: its gate is 1 and would never learn.
    """

    def __init__(self, c: ModelConfig, n_shared: int = 0):
        super().__init__()
        if not 2 <= c.top_k <= c.n_experts:
            raise UserError(f"model.top_k={c.top_k}: must be from 2 to model.n_experts={c.n_experts}")
        self.share, self.n_experts = c.top_k / c.n_experts, c.n_experts
        self.width = c.mlp_width or round(8 * c.d_model / 3 / (c.top_k + n_shared))
        self.router = lookup(ROUTERS, c.router, "model.router")(c)
        self.act = lookup(GATINGS, c.gating, "model.gating")
        bias = biased(c, "mlp")
        self.gate_up = Stack(c.n_experts, c.d_model, 2 * self.width, bias=bias)
        self.down = Stack(c.n_experts, self.width, c.d_model, writes=True, bias=bias)

    def forward(self, x):
        flat = x.flatten(0, -2)  # (N, D)
        chosen, gates = self.router(flat)
        size = -(-chosen.numel() // (BLOCKS * self.n_experts))
        row, owner = seats(chosen, self.n_experts, size)
        rows = flat.unsqueeze(1).expand(*chosen.shape, -1).flatten(0, 1)  # (NK, D)
        rows = rows.new_zeros(len(owner) * size, flat.shape[-1]).index_copy(0, row, rows)
        gate, up = self.gate_up(rows.view(len(owner), size, -1), owner).chunk(2, dim=-1)
        y = self.down(self.act(gate, up), owner).flatten(0, 1)[row]  # (NK, D)
        return (y.view(*chosen.shape, -1) * gates.unsqueeze(-1)).sum(1).to(x.dtype).view(x.shape)

    def flops(self, T: int) -> int:
        """As computed: the spare blocks that make any load fit are half as much again."""
        spare = 1 + 1 / BLOCKS
        return round(2 * spare * self.share * (self.gate_up.weight.numel() + self.down.weight.numel()))

    def inactive(self) -> int:
        """Weights that a symbol does not pass through."""
        return round((1 - self.share) * (self.gate_up.weight.numel() + self.down.weight.numel()))


class SharedExperts(Experts):
    """Experts besides, which every symbol passes through (Dai et al. 2024, arXiv:2401.06066): as one, wider SwiGLU."""

    def __init__(self, c: ModelConfig):
        super().__init__(c, c.n_shared)
        self.shared = SwiGLU(c, c.n_shared * self.width)

    def forward(self, x):
        return self.shared(x) + super().forward(x)


class Stack(nn.Module):
    """A projection per expert, in one tensor (E, d_in, d_out). `writes`: as in `Linear`."""

    def __init__(self, n_experts: int, d_in: int, d_out: int, writes: bool = False, bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_experts, d_in, d_out))
        self.bias = nn.Parameter(torch.empty(n_experts, 1, d_out)) if bias else None
        self.writes = writes

    def init(self, generator, n_layer: int) -> None:
        nn.init.normal_(self.weight, std=STD / (2 * n_layer) ** 0.5 if self.writes else STD, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, rows, owner):
        y = rows @ self.weight[owner]  # (blocks, size, d_in) times a matrix for each block
        return y if self.bias is None else y + self.bias[owner]


def seats(chosen, n_experts: int, size: int):
    """Where each choice sits when every block of `size` rows belongs to one expert: row (NK,), owner (blocks,).

    (BLOCKS + 1) E blocks hold any load, since an expert leaves less than one block unfilled.
    """
    choices = F.one_hot(chosen.flatten(), n_experts)  # (NK, E)
    taken = choices.sum(0)
    ends = ((taken + size - 1) // size).cumsum(0)  # the first block behind each expert's
    starts = (ends - (taken + size - 1) // size) * size
    row = ((starts + choices.cumsum(0) - 1) * choices).sum(1)
    block = torch.arange((BLOCKS + 1) * n_experts, device=chosen.device)
    owner = (block.unsqueeze(1) >= ends).sum(1).clamp(max=n_experts - 1)
    return row, owner


def in_float32(scores: Linear, x):
    """Logits in float32: in bf16 two experts tie too often (Fedus et al. 2021, section 2.4)."""
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.float(), scores.weight.float(), None if scores.bias is None else scores.bias.float())


def shares(chosen, n_experts: int):
    """The share of all choices that fell on each expert (E,)."""
    return F.one_hot(chosen, n_experts).float().mean((0, 1))


def evenness(load) -> dict:
    """The busiest expert's load in units of the mean, and the load's entropy in units of the largest; 1 when even."""
    return {
        "router_load": load.max() * load.numel(),
        "router_entropy": torch.special.entr(load).sum() / math.log(load.numel()),
    }


MLPS = {"moe": Experts, "moe_shared": SharedExperts}
