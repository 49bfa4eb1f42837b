"""Weights that state their role, so that initialization never reads a parameter's name."""

from torch import nn

from config import ModelConfig, UserError, lookup

STD = 0.02  # GPT-2's spread for every matrix
BIASES = {  # model.bias -> the projections that have one
    "none": (),
    "qkv": ("qkv",),
    "mlp": ("mlp",),
    "mlp_logits": ("mlp", "logits"),
    "all": ("qkv", "out", "mlp"),
}


def biased(c: ModelConfig, place: str) -> bool:
    """Whether the projections in a place (qkv, out, mlp or logits) have a bias."""
    return place in lookup(BIASES, c.bias, "model.bias")


def require_unbiased(c: ModelConfig, place: str, kind: str) -> None:
    """Raises UserError where model.bias asks for a bias in a place that has none in this kind of part."""
    if biased(c, place):
        raise UserError(f"model.bias={c.bias}: {kind} has no biases. Allowed: none")


class Linear(nn.Linear):
    """A projection. `writes`: its output is added to the residual stream.

    What writes to the stream starts smaller by sqrt(number of writes), so that the stream's
    variance does not grow with depth (Radford et al. 2019, section 2.3). A bias starts at 0.
    """

    def __init__(self, d_in: int, d_out: int, writes: bool = False, bias: bool = False):
        super().__init__(d_in, d_out, bias=bias)
        self.writes = writes

    def init(self, generator, n_layer: int) -> None:
        nn.init.normal_(self.weight, std=STD / (2 * n_layer) ** 0.5 if self.writes else STD, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """A table looked up by symbol or by place; its weights are not counted as the block's.

    `scale` multiplies what is looked up, not what is written through the same table.
    """

    def __init__(self, n: int, width: int, scale: float = 1.0):
        super().__init__(n, width)
        self.scale = scale

    def forward(self, ids):
        found = super().forward(ids)
        return found if self.scale == 1 else found * self.scale

    def init(self, generator, n_layer: int) -> None:
        nn.init.normal_(self.weight, std=STD, generator=generator)
