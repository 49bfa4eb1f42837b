"""Multi-token prediction: a head that learns from the symbol after the next, and is left out of generation."""

import torch
from torch import nn

from parts.linear import Linear


class Ahead(nn.Module):
    """One step further than the module before it (DeepSeek-V3, arXiv:2412.19437, section 2.2).

    State and embedded next symbol, each normalized, side by side, projected to the width of one more block.
    Embedding and unembedding are the model's own. `end`: what reads the stream behind the block.
    """

    def __init__(self, width: int, block: nn.Module, state_norm: nn.Module, symbol_norm: nn.Module, end: nn.Module):
        super().__init__()
        self.state_norm, self.symbol_norm, self.final_norm = state_norm, symbol_norm, end
        self.merge = Linear(2 * width, width)
        self.block = block

    def forward(self, state, symbols, position):
        """state (B, T, D) of the places so far, embedded symbols (B, T, D) behind them -> the next states (B, T, D)."""
        merged = self.merge(torch.cat([self.state_norm(state), self.symbol_norm(symbols)], dim=-1))
        return self.final_norm(self.block(self.block.begin(merged), position))
