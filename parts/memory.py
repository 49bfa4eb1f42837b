"""What a layer knows of the symbols before those that it is given: nothing in training, its cache in generation.

The position that a block is handed answers both ways, so that a part is written once. Shapes: B sequences, T new
symbols, S symbols so far, the new ones among them.
"""

import torch
from torch import nn
from torch.nn import functional as F


class AtOnce:
    """A whole text in one call, as in training: nothing was before it, and nothing is kept."""

    start = 0  # place of the first symbol

    def remember(self, name: str, *new, every: int = 1, window: int | None = None):
        """Tensors (B, heads, T, size), such as keys and values, one for `every` so many symbols -> of all so far."""
        return new

    def before(self, x, count: int):
        """(B, T, channels) with the `count` symbols before it in front, zeros before the first."""
        return F.pad(x, (0, 0, count, 0))

    def carry(self, rule, step, *inputs):
        """A recurrence over its inputs (B, heads, T, ...): `rule` does all symbols at once; `step` does one, from

        the state that the symbols before left, 0 before the first, to an output (B, heads, ...) and a new state.
        """
        return rule(*inputs)

    def form(self, at_once, in_turn):
        """Of two ways to compute the same, the one that is fast here."""
        return at_once


class LayerMemory:
    """What one layer keeps of a text of at most `room` symbols. The first call brings several, each later one a symbol.

    Room is taken once. Of keys with a window only those in it are kept, the newest in the place of the oldest.
    """

    def __init__(self, position: nn.Module, room: int):
        self.position, self.room, self.start, self.kept = position, room, 0, {}

    def rotate(self, x):
        return self.position.rotate(x, self.start)

    def remember(self, name, *new, every=1, window=None):
        size = min(window or self.room, -(-self.room // every))
        if self.start == 0:
            self.kept[name] = [stored(x, size) for x in new]
            return new
        place = self.start // every
        for old, x in zip(self.kept[name], new, strict=True):
            old[:, :, place % size] = x[:, :, 0]
        return [old[:, :, : place + 1] for old in self.kept[name]]

    def before(self, x, count):
        whole = torch.cat([self.kept["before"][0], x], dim=1) if self.start else F.pad(x, (0, 0, count, 0))
        self.kept["before"] = [whole[:, -count:].clone()]
        return whole

    def carry(self, rule, step, *inputs):
        state, outputs = self.kept["state"][0] if self.start else 0.0, []
        for now in zip(*(x.unbind(2) for x in inputs), strict=True):
            y, state = step(state, *now)
            outputs.append(y)
        self.kept["state"] = [state]
        return torch.stack(outputs, dim=2)

    def form(self, at_once, in_turn):
        return in_turn


class Memory(nn.Module):
    """In place of a model's position: `room` symbols of one text, a part of it in each call. Fill it once."""

    def __init__(self, position: nn.Module, n_layer: int, room: int):
        super().__init__()
        self.position, self.start, self.end = position, 0, 0  # of the newest part
        self.layers = [LayerMemory(position.of(layer), room) for layer in range(n_layer)]

    def embed(self, x):
        self.start, self.end = self.end, self.end + x.shape[-2]
        return self.position.embed(x, self.start)

    def of(self, layer: int) -> LayerMemory:
        self.layers[layer].start = self.start
        return self.layers[layer]

    def tensors(self) -> list[torch.Tensor]:
        """All that is kept."""
        return [x for layer in self.layers for kept in layer.kept.values() for x in kept]


def stored(x, size: int):
    """(B, heads, T, n) -> (B, heads, size, n) with the newest in it, each at its place modulo `size`."""
    T = x.shape[2]
    room = x.new_empty(*x.shape[:2], size, x.shape[3])
    newest = torch.arange(max(0, T - size), T, device=x.device)
    room[:, :, newest % size] = x[:, :, newest]
    return room
