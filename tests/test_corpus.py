"""The text's way to symbols: nothing lost, nothing on both sides, every dev symbol scored once."""

import dataclasses
import hashlib
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from config import Kind, Split, TextConfig, UserError
from text import corpus

ROOT = Path(__file__).parents[1]
QUICK = settings(max_examples=60, deadline=None, database=None)
PROSE = "".join(f"{n} brown foxes — naïve, “quick”, 99 € — jump över {n * n} dogs.\r\n" for n in range(400))
DOCUMENTS = st.lists(st.text(min_size=40).map(lambda text: (text * 20).encode()), min_size=2, max_size=6, unique=True)


def load(path, **knobs):
    return corpus.load(TextConfig(name="file", path=str(path), **knobs))


def one(folder, data, **knobs):
    """The corpus of a single file."""
    path = folder / "text.txt"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return load(path, **knobs)


def many(folder, documents, **knobs):
    """The corpus of a folder with these documents."""
    folder.mkdir(exist_ok=True)
    for number, data in enumerate(documents):
        (folder / f"{number}.txt").write_bytes(data)
    return load(folder, **knobs)


@pytest.fixture(scope="module", params=Kind, ids=lambda kind: kind.value)
def prose(request, tmp_path_factory):
    return one(tmp_path_factory.mktemp("prose"), PROSE, kind=request.param, bpe_vocab=300)


# --- symbols ------------------------------------------------------------------------------------


@QUICK
@given(text=st.text(st.sampled_from(sorted(set(PROSE)))))
def test_known_text_comes_back(prose, text):
    ids = prose.encode(text)
    assert prose.decode(ids) == text
    assert ids.dtype == torch.int64 and (ids > corpus.BOS).all() and (ids < prose.vocab_size).all()


@QUICK
@given(text=st.text())
def test_unknown_text_comes_back_but_for_escapes(prose, text):
    known = set(PROSE) if prose.kind is Kind.char else set(text)
    assert prose.decode(prose.encode(text)) == "".join(c if c in known else "\ufffd" for c in text)


def test_every_kind_scores_the_same_bytes(prose, tmp_path):
    other = one(tmp_path, PROSE, kind=Kind.byte)
    assert (prose.sha256, prose.dev_text, prose.dev_bytes) == (other.sha256, other.dev_text, other.dev_bytes)
    assert prose.dev_bytes == len(prose.dev_text) and PROSE.encode().endswith(prose.dev_text)
    assert prose.decode(prose.train) + prose.decode(prose.dev[0]) == PROSE


def test_uniform_model_needs_log2_of_the_vocabulary(prose):
    """With multi-byte text: bits per byte are taken over UTF-8 bytes, whatever a symbol is."""
    symbols = sum(len(stretch) - 1 for stretch in prose.dev)
    expected = symbols * math.log2(prose.vocab_size) / len(prose.dev_text)
    assert symbols == prose.dev_symbols and len(prose.dev_text) > len(prose.dev_text.decode())
    assert corpus.bits_per_byte(symbols * math.log(prose.vocab_size), prose) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("unseen", ["🦊", "é", "ж", "~"])
def test_unseen_character_costs_its_bytes(tmp_path, unseen):
    text = one(tmp_path, "abcd" * 500 + unseen)
    ids = text.dev[0]
    assert ids.tolist().count(corpus.ESCAPE) == 1 and text.vocab_size == 4 + 2
    assert text.fallback_bytes == len(unseen.encode())
    nats = text.dev_symbols * math.log(6)
    aside = 2.0**-corpus.ESCAPE_BITS  # probability kept for the escape: all costs together are those of one code
    bits = text.dev_symbols * -math.log2((1 - aside) / 6) - math.log2(aside) + 8 * len(unseen.encode())
    assert corpus.bits_per_byte(nats, text) == pytest.approx(bits / text.dev_bytes, rel=1e-12)
    scored = torch.cat([targets.flatten() for _, targets in corpus.windows(text, 16, 16, 8)])
    assert corpus.ESCAPE not in scored and (scored != corpus.IGNORED).sum() == text.dev_symbols
    assert one(tmp_path, "abcd" * 500 + unseen, kind=Kind.byte).fallback_bytes == 0


def test_vocabulary_comes_from_the_training_text_alone(tmp_path):
    text = one(tmp_path, "xyz" * 1000 + "abc" * 110)
    assert text.codec.chars.tolist() == [ord(c) for c in "xyz"]
    bpe = [one(tmp_path, PROSE + tail * 500, kind=Kind.bpe, bpe_vocab=300) for tail in ("q!", "z?")]
    assert bpe[0].dev_text != bpe[1].dev_text and torch.equal(bpe[0].train, bpe[1].train)
    assert bpe[0].codec.tokenizer.get_vocab() == bpe[1].codec.tokenizer.get_vocab()


def test_bpe_is_the_same_in_another_process(tmp_path):
    here = one(tmp_path, PROSE, kind=Kind.bpe, bpe_vocab=400)
    program = (
        "import sys, hashlib; from text import corpus; from config import Kind, TextConfig;"
        "text = corpus.load(TextConfig(path=sys.argv[1], kind=Kind.bpe, bpe_vocab=400));"
        "print(hashlib.sha256(text.train.numpy().tobytes()).hexdigest())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "text.txt")]
    there = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert there == hashlib.sha256(here.train.numpy().tobytes()).hexdigest()


def test_bpe_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r'pip install "\.\[bpe\]"'):
        one(tmp_path, PROSE, kind=Kind.bpe)


def test_line_ends_stay_and_count(tmp_path):
    crlf, lf = (one(tmp_path, PROSE.replace("\r\n", end)) for end in ("\r\n", "\n"))
    assert "\r\n" in crlf.decode(crlf.train) and crlf.sha256 != lf.sha256


# --- the split ----------------------------------------------------------------------------------


def stretches(text):
    """The text of every training stretch, and of every dev stretch, as bytes."""
    starts = [*(text.train == corpus.BOS).nonzero().flatten().tolist(), len(text.train)]
    train = [text.train[a:b] for a, b in pairwise(starts)]
    return [[bytes((ids[1:] - 1).tolist()) for ids in side] for side in (train, text.dev)]


@QUICK
@given(documents=DOCUMENTS, fraction=st.floats(0.1, 0.7))
def test_tail_cuts_each_document_once(tmp_path_factory, documents, fraction):
    text = many(tmp_path_factory.mktemp("tail"), documents, kind=Kind.byte, dev_fraction=fraction)
    train, dev = stretches(text)
    assert [a + b for a, b in zip(train, dev, strict=True)] == documents
    for data, part in zip(documents, dev, strict=True):
        assert abs(len(part) - fraction * len(data)) <= 4 and part.decode()  # on a character's boundary


@QUICK
@given(documents=DOCUMENTS, fraction=st.floats(0.05, 0.5))
def test_documents_go_to_one_side(tmp_path_factory, documents, fraction):
    folder = tmp_path_factory.mktemp("documents")
    knobs = {"kind": Kind.byte, "split": Split.documents, "dev_fraction": fraction}
    try:
        text = many(folder, documents, **knobs)
    except UserError as error:
        assert "0 in the training split" in str(error)  # one document outweighs all others
        return
    train, dev = stretches(text)
    assert sorted(train + dev) == sorted(documents)
    total = sum(map(len, documents))
    assert text.dev_bytes >= fraction * total > text.dev_bytes - len(dev[-1])
    (folder / "sub").mkdir()
    (folder / "sub" / "again.txt").write_bytes(documents[0])  # the same document once more
    assert load(folder, **knobs).sha256 == text.sha256


@pytest.mark.parametrize("split", Split)
@pytest.mark.parametrize("train_bytes, dev_bytes", [(1000, 100), (5003, 777), (10**9, 10**9)])
def test_fewer_bytes(tmp_path, split, train_bytes, dev_bytes):
    sizes = zip("aé€🦊ß", (400, 900, 150, 1300, 500), strict=True)
    documents = ["".join(f"{letter}{n}" for n in range(size)).encode() for letter, size in sizes]
    knobs = {"kind": Kind.byte, "split": split, "dev_fraction": 0.3}
    whole = many(tmp_path / "folder", documents, **knobs)
    text = load(tmp_path / "folder", train_bytes=train_bytes, dev_bytes=dev_bytes, **knobs)
    assert 0 <= text.train_bytes - min(train_bytes, whole.train_bytes) <= 3
    assert 0 <= text.dev_bytes - min(dev_bytes, whole.dev_bytes) <= 3
    (train, dev), (whole_train, whole_dev) = stretches(text), stretches(whole)
    for part in train + dev:
        assert part.decode()
    if split is Split.tail:  # the same share of every document, next to the cut
        assert all(a.endswith(b) for a, b in zip(whole_train, train, strict=True))
        assert all(a.startswith(b) for a, b in zip(whole_dev, dev, strict=True))
        shares = [len(b) / len(a) for a, b in zip(whole_train, train, strict=True) if len(a) > 500]
        assert max(shares) - min(shares) < 0.01
    else:
        assert whole_train[: len(train) - 1] == train[:-1] and whole_train[len(train) - 1].startswith(train[-1])


def test_hidden_files_and_folders_are_no_text(tmp_path):
    text = many(tmp_path / "folder", [PROSE.encode()])
    (tmp_path / "folder" / ".git").mkdir()
    for name in (".git/config", ".notes"):
        (tmp_path / "folder" / name).write_text("secret" * 100)
    (tmp_path / "folder" / "empty.txt").touch()
    assert load(tmp_path / "folder").sha256 == text.sha256


# --- what a person can get wrong ------------------------------------------------------------------


def test_latin1_names_file_and_offset(tmp_path):
    bad = PROSE.encode() + "café".encode("latin-1")
    for kind in (Kind.char, Kind.bpe):
        with pytest.raises(UserError, match=rf"1\.txt is not UTF-8: byte 0xe9 at offset {len(bad) - 1}.*kind=byte"):
            many(tmp_path / "folder", [PROSE.encode(), bad], kind=kind)
    assert load(tmp_path / "folder", kind=Kind.byte).dev_text.endswith(b"\xe9")


@pytest.mark.parametrize(
    "data, knobs, message",
    [
        (b"", {}, "empty; at least 100 bytes to train on and 100 to score"),
        (b"0123456789", {}, "10 bytes in 1 different document.* 9 in the training split, at least 100"),
        (b"0123456789" * 100, {"dev_fraction": 0.003}, "leave 3 in the dev split, at least 100"),
        (b"0123456789" * 100, {"dev_fraction": 0.0}, "dev_fraction=0.0: allowed"),
        (b"0123456789" * 100, {"dev_fraction": 1.5}, "dev_fraction=1.5: allowed"),
        (b"0123456789" * 100, {"train_bytes": 0}, "train_bytes=0: allowed are 100 or more"),
        (b"0123456789" * 100, {"dev_bytes": -5}, "dev_bytes=-5: allowed are 100 or more"),
        (b"0123456789" * 1000, {"kind": Kind.bpe, "bpe_vocab": 255}, "bpe_vocab=255: allowed are 256 to 65535"),
        (b"0123456789" * 1000, {"kind": Kind.bpe, "bpe_vocab": 1000}, "bpe_vocab=1000: .* yields only 2.. symbols"),
        ("".join(map(chr, range(0x10000, 0x24000))), {}, "symbols, at most 65536 are allowed"),
    ],
)
def test_bad_text_gets_one_line(tmp_path, data, knobs, message):
    with pytest.raises(UserError, match=message) as caught:
        one(tmp_path, data, **knobs)
    assert "\n" not in str(caught.value)


def test_bad_folder_gets_one_line(tmp_path):
    with pytest.raises(UserError, match="nowhere: no such file or folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no files in this folder"):
        load(tmp_path)
    with pytest.raises(UserError, match=r"1 different document\(s\) leave 0 in the training split.*split=tail"):
        many(tmp_path / "folder", [PROSE.encode()] * 2, split=Split.documents)


def test_context_longer_than_the_text(tmp_path):
    text = one(tmp_path, "ab" * 500)
    corpus.require(text, len(text.train) - 2)
    with pytest.raises(UserError, match=r"901 symbols, model\.context=900 needs at least 902"):
        corpus.require(text, 900)


# --- batches and windows --------------------------------------------------------------------------


def test_batches_are_a_function_of_seed_and_step(prose):
    first = corpus.batch(prose.train, 0, 3, 16, 24)
    assert all(map(torch.equal, first, corpus.batch(prose.train, 0, 3, 16, 24)))
    assert first[0].shape == first[1].shape == (16, 24)
    assert torch.equal(first[0][:, 1:], first[1][:, :-1])  # targets are the inputs one symbol on
    for seed, step in ((1, 3), (0, 4), (3, 0)):
        assert not torch.equal(first[0], corpus.batch(prose.train, seed, step, 16, 24)[0])


def test_batches_reach_both_ends(prose):
    short = dataclasses.replace(prose, train=torch.arange(12))
    inputs, targets = corpus.batch(short.train, 0, 0, 200, 10)
    assert set(inputs[:, 0].tolist()) == {0, 1} and targets.max() == 11


SIZES = (1, 6, 7, 8, 13, 40)  # symbols of a stretch, around a context of 7


def slow_walk(dev, context, stride):
    """What is scored, and what it sees, worked out symbol by symbol."""
    for stretch in dev:
        inputs, targets = stretch[:-1].tolist(), stretch[1:].tolist()
        start, end = 0, 0  # of the window
        for at, target in enumerate(targets):
            if at == end:
                start, end = (0, context) if at == 0 else (start + stride, end + stride)
            yield inputs[start : at + 1], target


@pytest.mark.parametrize("stride", [7, 6, 4, 3, 1])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_windows_score_each_symbol_once(prose, stride, batch_size):
    dev = [torch.cat((torch.tensor([corpus.BOS]), torch.arange(n) + 100 * n)) for n in SIZES]
    text = dataclasses.replace(prose, dev=dev)
    found = []
    for inputs, targets in corpus.windows(text, 7, stride, batch_size):
        assert inputs.shape == targets.shape and inputs.shape[1] == 7 and len(inputs) <= batch_size
        for row, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
            found += [(row[: at + 1], target) for at, target in enumerate(wanted) if target != corpus.IGNORED]
    assert found == list(slow_walk(dev, 7, stride or 7))
    assert [target for _, target in found] == torch.cat([stretch[1:] for stretch in dev]).tolist()


def test_anchors_are_bits_per_byte(tmp_path):
    noise = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(10_000))
    assert all(8 <= bits < 8.2 for bits in one(tmp_path, noise, kind=Kind.byte).anchors().values())
    assert all(0 < bits < 0.3 for bits in one(tmp_path, b"a" * 100_000).anchors().values())
