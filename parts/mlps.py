"""The MLP seam. Every MLP is built as `MLP(model_config)` and maps (B, T, D) to (B, T, D).

Width rule: every kind has 8 D^2 weights unless `mlp_width` says otherwise, so that a swap
compares shapes and not sizes. A kind that is wider on purpose says so.
"""

from functools import partial

from torch import nn
from torch.nn import functional as F

from config import ModelConfig
from parts.linear import Linear, biased


class Gated(nn.Module):
    """act(x W_gate) * (x W_up), then W_down: three matrices at `ratio` D."""

    act = None
    ratio = 8 / 3

    def __init__(self, c: ModelConfig, width: int | None = None):
        super().__init__()
        width = width or c.mlp_width or round(self.ratio * c.d_model)
        self.gate_up = Linear(c.d_model, 2 * width, bias=biased(c, "mlp"))
        self.down = Linear(width, c.d_model, writes=True, bias=biased(c, "mlp"))

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.act(gate) * up)


class SwiGLU(Gated):
    """Gated by silu (Shazeer 2020, arXiv:2002.05202)."""

    act = staticmethod(F.silu)


class WideSwiGLU(SwiGLU):
    """At Llama 3's width, 14,336 for a stream of 4,096: 10.5 D^2 weights (arXiv:2407.21783)."""

    ratio = 3.5


class GEGLU(Gated):
    """Gated by gelu (Shazeer 2020, arXiv:2002.05202)."""

    act = staticmethod(F.gelu)


class TanhGEGLU(Gated):
    """GEGLU with gelu's formula of tanh (Gemma 2, arXiv:2408.00118)."""

    act = staticmethod(partial(F.gelu, approximate="tanh"))


class TwoMatrices(nn.Module):
    """act(x W_up), then W_down: two matrices at 4 D."""

    act = None

    def __init__(self, c: ModelConfig):
        super().__init__()
        width = c.mlp_width or 4 * c.d_model
        self.up = Linear(c.d_model, width, bias=biased(c, "mlp"))
        self.down = Linear(width, c.d_model, writes=True, bias=biased(c, "mlp"))

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class GELU(TwoMatrices):
    """Hendrycks & Gimpel 2016, arXiv:1606.08415."""

    act = staticmethod(F.gelu)


class TanhGELU(TwoMatrices):
    """By a formula of tanh, as in GPT-2 (Hendrycks & Gimpel 2016, arXiv:1606.08415)."""

    act = staticmethod(partial(F.gelu, approximate="tanh"))


class ReLU(TwoMatrices):
    """As in 2017 (Vaswani et al., arXiv:1706.03762)."""

    act = staticmethod(F.relu)


class SquaredReLU(TwoMatrices):
    """relu(x)^2 (So et al. 2021, Primer, arXiv:2109.08668)."""

    @staticmethod
    def act(x):
        return F.relu(x).square()


MLPS = {
    "swiglu": SwiGLU,
    "swiglu_wide": WideSwiGLU,
    "geglu": GEGLU,
    "geglu_tanh": TanhGEGLU,
    "gelu": GELU,
    "gelu_tanh": TanhGELU,
    "relu": ReLU,
    "relu_squared": SquaredReLU,
}
