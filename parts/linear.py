"""Weights that state their role, so that initialization never reads a parameter's name."""

from torch import nn

STD = 0.02  # GPT-2's spread for every matrix


class Linear(nn.Linear):
    """A projection without bias. `writes`: its output is added to the residual stream.

    What writes to the stream starts smaller by sqrt(number of writes), so that the stream's
    variance does not grow with depth (Radford et al. 2019, section 2.3).
    """

    def __init__(self, d_in: int, d_out: int, writes: bool = False):
        super().__init__(d_in, d_out, bias=False)
        self.writes = writes

    def init(self, generator, n_layer: int) -> None:
        nn.init.normal_(self.weight, std=STD / (2 * n_layer) ** 0.5 if self.writes else STD, generator=generator)


class Embedding(nn.Embedding):
    """A table looked up by symbol or by place; its weights are not counted as the block's."""

    def init(self, generator, n_layer: int) -> None:
        nn.init.normal_(self.weight, std=STD, generator=generator)
