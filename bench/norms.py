"""The norms alone: written out, torch's fused function, and this project's class."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.benchmark import Timer

from config import ModelConfig
from parts.norms import LayerNorm, RMSNorm
from training.machine import Machine

EPS = ModelConfig.norm_eps
SHAPES = {"smoke": (8 * 32, 48), "blog": (72 * 128, 144), "wide": (2048, 1024)}  # (symbols, width)


class NaiveLayerNorm(nn.LayerNorm):
    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight + self.bias


class NaiveRMSNorm(nn.RMSNorm):
    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight


class FusedLayerNorm(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class FusedRMSNorm(nn.RMSNorm):
    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


def measure(machine: Machine, shapes: list[str], rounds: int, seconds: float) -> list[dict]:
    """Microseconds of every norm, the norms in turn. float32, which is what the stream is in under autocast."""
    found = []
    for shape in shapes:
        x = torch.randn(SHAPES[shape], device=machine.device, requires_grad=True)
        rows = [row for (norm, how), kind in NORMS.items() for row in timers(norm, how, kind, x, machine.threads)]
        for _ in range(rounds):
            for row, timer in rows:
                row["rounds_us"].append(timer.blocked_autorange(min_run_time=seconds).median * 1e6)
        found += [{"shape": SHAPES[shape], **row} for row, _ in rows]
    return found


def timers(norm: str, how: str, kind: type[nn.Module], x: torch.Tensor, threads: int) -> list[tuple[dict, Timer]]:
    """One for the forward pass, one for forward and backward."""
    names = {"norm": kind(x.shape[-1], eps=EPS).to(x.device), "x": x, "g": torch.ones_like(x)}
    passes = {"forward": "norm(x)", "forward + backward": "norm(x).backward(g)"}
    return [
        ({"norm": norm, "how": how, "pass": name, "rounds_us": []}, Timer(code, globals=names, num_threads=threads))
        for name, code in passes.items()
    ]


NORMS = {
    ("LayerNorm", "written out"): NaiveLayerNorm,
    ("LayerNorm", "F.layer_norm"): FusedLayerNorm,
    ("LayerNorm", "ours"): LayerNorm,
    ("RMSNorm", "written out"): NaiveRMSNorm,
    ("RMSNorm", "F.rms_norm"): FusedRMSNorm,
    ("RMSNorm", "ours"): RMSNorm,
}
