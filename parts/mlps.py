"""The MLP seam. Every MLP is built as `MLP(model_config)` and maps (B, T, D) to (B, T, D).

Width rule: every kind has 8 D^2 weights unless `mlp_width` says otherwise, so that a swap
compares shapes and not sizes.
"""

from torch import nn
from torch.nn import functional as F

from config import ModelConfig
from parts.linear import Linear


class SwiGLU(nn.Module):
    """silu(x W_gate) * (x W_up), then W_down; three matrices at 8/3 D (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        width = c.mlp_width or round(8 * c.d_model / 3)
        self.gate_up = Linear(c.d_model, 2 * width)
        self.down = Linear(width, c.d_model, writes=True)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class GELU(nn.Module):
    """gelu(x W_up), then W_down; two matrices at 4 D (Hendrycks & Gimpel 2016, arXiv:1606.08415)."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        width = c.mlp_width or 4 * c.d_model
        self.up = Linear(c.d_model, width)
        self.down = Linear(width, c.d_model, writes=True)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


MLPS = {"swiglu": SwiGLU, "gelu": GELU}
