"""The text of a run: symbols of the training side, stretches of the dev side, batches and the walk over dev."""

import bz2
import gzip
import hashlib
import lzma
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from config import Kind, TextConfig, UserError
from data import prepare
from text import documents
from text.symbols import BOS, CODECS, ESCAPE, MAX_VOCAB, Codec

IGNORED = -100  # a target that is not scored (cross_entropy's own ignore_index)
ESCAPE_BITS = 16  # price of saying "a character that training did not have", before its bytes


@dataclass(frozen=True, eq=False)
class Corpus:
    kind: Kind
    vocab_size: int
    train: Tensor = field(repr=False)  # (n,) symbols; every stretch starts with BOS
    dev: list[Tensor] = field(repr=False)  # one (n,) per stretch, each starting with BOS
    dev_text: bytes = field(repr=False)  # the scored bytes, joined
    train_bytes: int
    dev_bytes: int
    escapes: int  # dev characters that the training text does not have
    fallback_bytes: int  # their UTF-8 bytes
    sha256: str  # of the training and dev bytes
    codec: Codec = field(repr=False)

    def __str__(self) -> str:
        dev = f"{self.dev_bytes:,} bytes to score in {len(self.dev)} stretches"
        return f"text: {self.train_bytes:,} bytes to train on, {dev}, {self.vocab_size} {self.kind.value} symbols"

    @property
    def dev_symbols(self) -> int:
        """Dev symbols that the model predicts: all but each stretch's BOS and the escapes."""
        return sum(len(stretch) - 1 for stretch in self.dev) - self.escapes

    def anchors(self) -> dict[str, float]:
        """Bits per byte that well-known compressors, at their strongest, need for the dev bytes."""
        sizes = {
            "gzip": len(gzip.compress(self.dev_text, 9, mtime=0)),
            "bzip2": len(bz2.compress(self.dev_text, 9)),
            "xz": len(lzma.compress(self.dev_text, preset=9 | lzma.PRESET_EXTREME)),
        }
        return {name: 8 * size / self.dev_bytes for name, size in sizes.items()}

    def encode(self, text: str) -> Tensor:
        """Symbols (n,), without a BOS."""
        return torch.from_numpy(self.codec.encode(text.encode())[0])

    def decode(self, ids) -> str:
        """Text of a sequence of symbols. BOS is left out; ESCAPE and broken UTF-8 become U+FFFD."""
        ids = np.asarray(ids, dtype=np.int64)
        return self.codec.decode(ids[ids != BOS])


def load(text: TextConfig, root: Path = prepare.DATA) -> Corpus:
    """The corpus that a configuration describes; a named text that is not in `root` is fetched once.

    Raises UserError for a text that cannot be read, decoded, split or fetched.
    """
    source = Path(text.path).expanduser() if text.path else prepare.ensure(text.name, root)
    train, dev = documents.read(source, text)
    codec = CODECS[text.kind](train, text)
    if codec.vocab_size > MAX_VOCAB:
        raise UserError(f"{source}: {codec.vocab_size} symbols, at most {MAX_VOCAB} are allowed: take text.kind=byte")
    coded = [codec.encode(data) for data in dev]
    return Corpus(
        kind=text.kind,
        vocab_size=codec.vocab_size,
        train=_stretches([codec.encode(data)[0] for data in train]),
        dev=[_stretches([ids]) for ids, _ in coded],
        dev_text=b"".join(dev),
        train_bytes=sum(map(len, train)),
        dev_bytes=sum(map(len, dev)),
        escapes=sum(int(np.count_nonzero(ids == ESCAPE)) for ids, _ in coded) if text.kind is Kind.char else 0,
        fallback_bytes=sum(count for _, count in coded),
        sha256=_fingerprint(train, dev),
        codec=codec,
    )


def _stretches(coded: list[np.ndarray]) -> Tensor:
    """The symbols of all stretches, a BOS before each: (n,)."""
    start = np.array([BOS], dtype=np.int64)
    return torch.from_numpy(np.concatenate([piece for ids in coded for piece in (start, ids)]))


def _fingerprint(train: list[bytes], dev: list[bytes]) -> str:
    """sha256 of all stretches, each behind its side and its length, so that no two splits look alike."""
    digest = hashlib.sha256()
    for side, parts in (("train", train), ("dev", dev)):
        for part in parts:
            digest.update(f"{side} {len(part)}\n".encode())
            digest.update(part)
    return digest.hexdigest()


def require(corpus: Corpus, context: int) -> None:
    """Raises UserError where the training text is too short for windows of `context` symbols."""
    if len(corpus.train) < context + 2:
        raise UserError(
            f"the training split has {len(corpus.train)} symbols, model.context={context} needs at least"
            f" {context + 2}: take a longer text or a smaller model.context"
        )


def require_same(corpus: Corpus, sha256: str, name: str) -> None:
    """Raises UserError for another text than the one a run was frozen with."""
    if corpus.sha256 != sha256:
        raise UserError(f"text {name}: not the text that this run was frozen with")


def batch(symbols: Tensor, seed: int, step: int, batch_size: int, context: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, T) at random offsets of the training symbols (n,), on their device.

    A function of (seed, step), so a resume needs no state, and the same on every device.
    """
    starts = torch.from_numpy(np.random.default_rng([seed, step]).integers(len(symbols) - context, size=batch_size))
    places = torch.arange(context + 1, device=symbols.device)
    rows = symbols[starts.to(symbols.device, non_blocking=True)[:, None] + places]
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def windows(corpus: Corpus, context: int, stride: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets (b, T) over the dev set in fixed order; each symbol is a target exactly once.

    Window k of a stretch starts at k * stride; the first scores all it holds, a later one only what no
    window before it did. Other targets are IGNORED.
    """
    rows = (row for stretch in corpus.dev for row in _slide(stretch, context, stride))
    while some := list(islice(rows, batch_size)):
        inputs, targets = map(torch.stack, zip(*some, strict=True))
        yield inputs, targets.masked_fill(targets == ESCAPE, IGNORED) if corpus.escapes else targets


def _slide(stretch: Tensor, context: int, stride: int) -> Iterator[tuple[Tensor, Tensor]]:
    symbols = len(stretch) - 1
    later = max(0, math.ceil((symbols - context) / stride))  # windows after the first
    padding = later * stride + context - symbols
    inputs = torch.nn.functional.pad(stretch[:-1], (0, padding), value=BOS).unfold(0, context, stride)
    targets = torch.nn.functional.pad(stretch[1:], (0, padding), value=IGNORED).unfold(0, context, stride)
    yield inputs[0], targets[0]
    for k in range(1, later + 1):
        yield inputs[k], torch.cat((torch.full((context - stride,), IGNORED), targets[k, context - stride :]))


def bits_per_byte(nats: float, corpus: Corpus) -> float:
    """Of the summed nats of all `dev_symbols`.

    A model never sees the escape in training, so it has no opinion of it: before each symbol, 2^-ESCAPE_BITS
    of the probability is set aside for it, and an escaped character costs those bits and 8 for each of its bytes.
    A text without escapes pays nothing.
    """
    bits = nats / math.log(2)
    if corpus.escapes:
        bits += corpus.escapes * ESCAPE_BITS + 8 * corpus.fallback_bytes
        bits -= corpus.dev_symbols * math.log2(1 - 2**-ESCAPE_BITS)
    return bits / corpus.dev_bytes
