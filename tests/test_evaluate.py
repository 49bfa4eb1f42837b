"""The measured number, against a slow reference and under everything that must not move it."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import gpt
from config import Kind, MachineConfig, Precision
from text import corpus
from training import evaluate, machine


@pytest.fixture
def emoji_text(tmp_path):
    path = tmp_path / "emoji.txt"
    path.write_text("naïve café ☕ and a new balloon for two: one tea\n" * 300 + "a new one: 🎈 balloon\n" * 20)
    return path


def model_of(config, text, dropout=0.0):
    return gpt.GPT(replace(config.model, dropout=dropout), text.vocab_size).init(0)


def settle(precision=Precision.fp32):
    return machine.settle(MachineConfig(device="cpu", precision=precision, threads=1))


def slow_nats(model, text, context, stride):
    """Symbol by symbol: each from the longest context that its window gives it."""
    total = 0.0
    for stretch in text.dev:
        n = len(stretch) - 1
        for target in range(1, n + 1):
            window = 0 if target <= context else math.ceil((target - context) / stride)
            ids = stretch[window * stride : target][None]
            total += F.cross_entropy(model(ids)[0, -1:].double(), stretch[target : target + 1]).item()
    return total


@torch.no_grad()
@pytest.mark.parametrize(
    ("stride", "context", "position"),
    [(None, None, "rope"), (5, None, "rope"), (None, 80, "rope"), (9, 80, "sinusoidal"), (7, 12, "learned")],
)
def test_equals_a_slow_reference(config, stride, context, position):
    config.text.dev_bytes, config.eval.stride, config.eval.context = 400, stride, context
    config.model.position = position
    text = corpus.load(config.text)
    model = model_of(config, text).eval()
    fast = evaluate.dev_nats(model, text, config, settle()).item()
    T = context or config.model.context
    assert fast == pytest.approx(slow_nats(model, text, T, stride or T), rel=1e-5)
    assert evaluate.protocol(config, text, "fp32") | {"context": T, "stride": stride or T} == evaluate.protocol(
        config, text, "fp32"
    )


def test_batch_size_and_dropout_do_not_move_it(config):
    text = corpus.load(config.text)
    found = []
    for size, dropout in ((1, 0.0), (7, 0.0), (64, 0.5), (64, 0.5)):
        config.eval.batch_size = size
        found.append(evaluate.dev_nats(model_of(config, text, dropout), text, config, settle()).item())
    assert found == pytest.approx([found[0]] * 4, rel=1e-5)
    assert found[2] == found[3]


def test_bf16_is_within_a_hundredth_of_a_bit(config):
    text = corpus.load(config.text)
    model = model_of(config, text)
    bits = [
        corpus.bits_per_byte(evaluate.dev_nats(model, text, config, settle(p)).item(), text)
        for p in (Precision.fp32, Precision.bf16)
    ]
    assert bits[0] != bits[1] and abs(bits[0] - bits[1]) < 0.01


@pytest.mark.parametrize("kind", list(Kind))
def test_a_uniform_model_costs_log2_of_the_vocabulary_per_symbol(config, emoji_text, kind):
    config.text.path, config.text.kind, config.text.dev_bytes, config.text.bpe_vocab = str(emoji_text), kind, None, 280
    text = corpus.load(config.text)
    model = model_of(config, text)
    torch.nn.init.zeros_(model.embedding.weight)
    measured = corpus.bits_per_byte(evaluate.dev_nats(model, text, config, settle()).item(), text)
    dev = emoji_text.read_bytes()[-text.dev_bytes :]
    symbols = {Kind.char: len(dev.decode()), Kind.byte: len(dev)}.get(kind, text.dev_symbols)
    unseen = dev.decode().count("🎈") if kind is Kind.char else 0  # 16 bits for each escape, 8 for each of 4 bytes
    bits = (symbols - unseen) * math.log2(text.vocab_size) + unseen * (16 + 4 * 8)
    assert unseen or kind is not Kind.char
    assert measured == pytest.approx(bits / len(dev), abs=1e-4)
    assert evaluate.guess_bpb(text) == pytest.approx(measured)
