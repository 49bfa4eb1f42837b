"""The measured number: bits per byte of the whole dev set."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from config import Config, UserError, lookup
from parts.positions import POSITIONS
from text import corpus
from text.corpus import Corpus
from training.machine import Machine


@torch.no_grad()
def dev_nats(
    model: nn.Module, text: Corpus, config: Config, machine: Machine, logits: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Nats of all dev symbols, each scored once, summed in float64. Draws no random number.

    `logits` maps symbols (b, T) to logits (..., b, T, V) where that is not the model's own call; the sum is then (...).
    """
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=machine.device)
    for inputs, targets in corpus.windows(text, config.eval_context, stride(config), config.eval.batch_size):
        with machine.autocast():
            found = (logits or model)(inputs.to(machine.device))
        wanted = targets.to(machine.device).expand(found.shape[:-1])
        nats = F.cross_entropy(found.float().flatten(0, -2), wanted.flatten(), reduction="none")
        total = total + nats.view(wanted.shape).double().sum((-2, -1))
    model.train()
    return total


def stride(config: Config) -> int:
    """Symbols by which the window moves on."""
    return config.eval_context if config.eval.stride is None else config.eval.stride


def require_places(config: Config) -> None:
    """Raises UserError where evaluation asks for places that the model does not have."""
    c = config.model
    if config.eval_context > c.context and not lookup(POSITIONS, c.position, "model.position").endless:
        places = f"model.position={c.position} has the places of model.context={c.context} alone"
        raise UserError(f"eval.context={config.eval.context}: {places}")


def guess_bpb(text: Corpus) -> float:
    """Bits per byte of a model that finds every symbol equally likely."""
    return corpus.bits_per_byte(text.dev_symbols * math.log(text.vocab_size), text)


def protocol(config: Config, text: Corpus, precision: str) -> dict:
    """How the number was measured: numbers with different protocols never share a table."""
    return {
        "context": config.eval_context,
        "stride": stride(config),
        "precision": precision,
        "kind": config.text.kind.value,
        "text_sha256": text.sha256,
    }
