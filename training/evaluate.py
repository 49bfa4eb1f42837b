"""The measured number: bits per byte of the whole dev set."""

import math

import torch
from torch.nn import functional as F

from config import Config
from text import corpus
from text.corpus import Corpus
from training.machine import Machine


@torch.no_grad()
def dev_nats(model: torch.nn.Module, text: Corpus, config: Config, machine: Machine) -> float:
    """Nats of all dev symbols, each scored once, summed in float64. Draws no random number."""
    T = config.model.context
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=machine.device)
    for inputs, targets in corpus.windows(text, T, stride(config), config.eval.batch_size):
        with machine.autocast():
            logits = model(inputs.to(machine.device))
        nats = F.cross_entropy(logits.float().flatten(0, 1), targets.to(machine.device).flatten(), reduction="none")
        total += nats.double().sum()
    model.train()
    return total.item()


def stride(config: Config) -> int:
    """Symbols by which the window moves on."""
    return config.model.context if config.eval.stride is None else config.eval.stride


def guess_bpb(text: Corpus) -> float:
    """Bits per byte of a model that finds every symbol equally likely."""
    return corpus.bits_per_byte(text.dev_symbols * math.log(text.vocab_size), text)


def protocol(config: Config, text: Corpus, precision: str) -> dict:
    """How the number was measured: numbers with different protocols never share a table."""
    return {
        "context": config.model.context,
        "stride": stride(config),
        "precision": precision,
        "kind": config.text.kind.value,
        "text_sha256": text.sha256,
    }
