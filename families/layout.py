"""How a stored tensor meets its place: parts of a target, and changes on the way. `c` is the model's configuration."""

import torch
from torch import Tensor

from config import ModelConfig


def q(t: Tensor, c: ModelConfig, expert: int) -> Tensor:
    return t[: c.n_head * c.head_size]


def k(t: Tensor, c: ModelConfig, expert: int) -> Tensor:
    return t[c.n_head * c.head_size : -kv_rows(c)]


def v(t: Tensor, c: ModelConfig, expert: int) -> Tensor:
    return t[-kv_rows(c) :]


def kv_rows(c: ModelConfig) -> int:
    return (c.n_kv_head or c.n_head) * c.head_size


PARTS = {
    "all": lambda t, c, expert: t,
    "q": q,
    "k": k,
    "v": v,
    "first": lambda t, c, expert: t[: len(t) // 2],
    "second": lambda t, c, expert: t[len(t) // 2 :],
    "expert": lambda t, c, expert: t[expert],
    "expert_first": lambda t, c, expert: t[expert, :, : t.shape[-1] // 2],
    "expert_second": lambda t, c, expert: t[expert, :, t.shape[-1] // 2 :],
    "expert_row": lambda t, c, expert: t[:, 0],
}


def turned(x: Tensor, c: ModelConfig) -> Tensor:
    """A matrix, or a matrix of each expert, transposed; a bias as it is."""
    return x.mT if x.ndim > 1 else x


def even_then_odd(x: Tensor, c: ModelConfig) -> Tensor:
    """Columns that take turns, one kind after the other."""
    return torch.cat([x[..., ::2], x[..., 1::2]], dim=-1)


def by_head(x: Tensor, c: ModelConfig, order: list[int]) -> Tensor:
    """Rows of each head in another order."""
    return x.unflatten(0, (-1, len(order)))[:, order].flatten(0, 1)


def paired(first: list[int], second: list[int], c: ModelConfig) -> list[int]:
    """A head's rows as gpt.py pairs them, i with i + half, from those that a rotation pairs; the others stand still."""
    still = [row for row in range(c.head_size) if row not in {*first, *second}]
    half = len(still) // 2
    return [*first, *still[:half], *second, *still[half:]]


def side_by_side(x: Tensor, c: ModelConfig) -> Tensor:
    """Rows that are stored beside the one that they are rotated with."""
    turned = c.rotated or c.head_size
    return by_head(x, c, paired(list(range(0, turned, 2)), list(range(1, turned, 2)), c))


def half_apart(x: Tensor, c: ModelConfig) -> Tensor:
    turned = c.rotated or c.head_size
    return by_head(x, c, paired(list(range(turned // 2)), list(range(turned // 2, turned)), c))


def of_each(x: Tensor, c: ModelConfig, place: int) -> Tensor:
    """Queries, keys or values, from a tensor that has all three for one head after the other."""
    return x.unflatten(0, (c.n_head, 3, -1))[:, place].flatten(0, 1)


def rows_of_tail(n: int, c: ModelConfig) -> list[int]:
    """n rows, of which those at the end are rotated and stored beside their partner."""
    start = n - c.rotated
    return [*range(start), *range(start, n, 2), *range(start + 1, n, 2)]


def tail(x: Tensor, c: ModelConfig) -> Tensor:
    """Queries of latent attention."""
    return by_head(x, c, rows_of_tail(c.head_size + c.rotated, c))


def key_tail(x: Tensor, c: ModelConfig) -> Tensor:
    """The latent, and the rotated key behind it."""
    return x[rows_of_tail(len(x), c)]


def key(x: Tensor, c: ModelConfig) -> Tensor:
    """What reads keys from the latent, where each head reads its value behind its key."""
    return x.unflatten(0, (c.n_head, -1))[:, : c.head_size].flatten(0, 1)


def value(x: Tensor, c: ModelConfig) -> Tensor:
    return x.unflatten(0, (c.n_head, -1))[:, c.head_size :].flatten(0, 1)


CHANGES = {
    "same": lambda x, c: x,
    "turned": turned,
    "plus_one": lambda x, c: x + 1,
    "even_then_odd": even_then_odd,
    "side_by_side": side_by_side,
    "q_of_each": lambda x, c: half_apart(of_each(x, c, 0), c),
    "k_of_each": lambda x, c: half_apart(of_each(x, c, 1), c),
    "v_of_each": lambda x, c: of_each(x, c, 2),
    "tail": tail,
    "key_tail": key_tail,
    "key": key,
    "value": value,
}
