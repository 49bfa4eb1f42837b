"""The kinds of symbols: how bytes of text become numbers, and back.

A codec is built from the training text alone, so the dev text never shapes the vocabulary. BOS starts
every stretch of text and is never scored.
"""

import sys

import numpy as np

from config import Kind, TextConfig, UserError

BOS = 0
ESCAPE = 1  # char only: a character that the training text does not have
MAX_VOCAB = 65_536


class CharCodec:
    """One symbol per character of the training text, sorted by code point, after BOS and ESCAPE.

    An unseen character is coded as ESCAPE and its UTF-8 bytes; corpus.bits_per_byte says what that costs.
    """

    reserved = 2  # symbols that stand for no text, before all others

    def __init__(self, train: list[bytes], text: TextConfig):
        seen = np.zeros(sys.maxunicode + 1, dtype=bool)
        for data in train:
            seen[_code_points(data)] = True
        self.chars = np.flatnonzero(seen)
        self.vocab_size = len(self.chars) + 2
        self.table = np.full(len(seen), ESCAPE, dtype=np.int64)
        self.table[self.chars] = np.arange(2, self.vocab_size)

    def encode(self, data: bytes) -> tuple[np.ndarray, int]:
        """The symbols, and how many bytes the escaped characters have."""
        codes = _code_points(data)
        ids = self.table[codes]
        escaped = codes[ids == ESCAPE]
        return ids, sum(int(np.count_nonzero(escaped >= first)) for first in (0, 0x80, 0x800, 0x10000))

    def decode(self, ids: np.ndarray) -> str:
        shown = np.concatenate(([ord("\ufffd")] * 2, self.chars)).astype("<u4")
        return shown[ids].tobytes().decode("utf-32-le")


class ByteCodec:
    """One symbol per byte, after BOS."""

    reserved = 1

    def __init__(self, train: list[bytes], text: TextConfig):
        self.vocab_size = 257

    def encode(self, data: bytes) -> tuple[np.ndarray, int]:
        return np.frombuffer(data, dtype=np.uint8).astype(np.int64) + 1, 0

    def decode(self, ids: np.ndarray) -> str:
        return (ids - 1).astype(np.uint8).tobytes().decode("utf-8", "replace")


class BpeCodec:
    """Byte-level BPE of `text.bpe_vocab` symbols, trained on the training text, after BOS."""

    reserved = 1
    PIECE = 1 << 20  # characters encoded at once, which bounds the memory; no symbol crosses a border

    def __init__(self, train: list[bytes], text: TextConfig):
        try:
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        except ImportError:
            raise UserError('text.kind=bpe needs the package tokenizers: pip install ".[bpe]"') from None
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        if not len(alphabet) <= text.bpe_vocab < MAX_VOCAB:
            raise UserError(f"text.bpe_vocab={text.bpe_vocab}: allowed are {len(alphabet)} to {MAX_VOCAB - 1}")
        self.tokenizer = Tokenizer(models.BPE())
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=text.bpe_vocab, initial_alphabet=alphabet, show_progress=False)
        self.tokenizer.train_from_iterator((data.decode() for data in train), trainer)
        size = self.tokenizer.get_vocab_size()
        if size < text.bpe_vocab:
            raise UserError(f"text.bpe_vocab={text.bpe_vocab}: this training text yields only {size} symbols")
        self.vocab_size = size + 1
        # In a byte-level vocabulary every character of a symbol's name stands for one byte.
        self.bytes_of = np.array([len(self.tokenizer.id_to_token(i)) for i in range(size)])

    def encode(self, data: bytes) -> tuple[np.ndarray, int]:
        text = data.decode()
        pieces = [self.tokenizer.encode(text[at : at + self.PIECE]).ids for at in range(0, len(text), self.PIECE)]
        ids = np.array([i for piece in pieces for i in piece], dtype=np.int64)
        assert self.bytes_of[ids].sum() == len(data), "the tokenizer lost bytes of the text"
        return ids + 1, 0

    def decode(self, ids: np.ndarray) -> str:
        return self.tokenizer.decode((ids - 1).tolist())


Codec = CharCodec | ByteCodec | BpeCodec
CODECS = {Kind.char: CharCodec, Kind.byte: ByteCodec, Kind.bpe: BpeCodec}


def _code_points(data: bytes) -> np.ndarray:
    if data.isascii():
        return np.frombuffer(data, dtype=np.uint8)
    return np.frombuffer(data.decode().encode("utf-32-le"), dtype="<u4")
