"""Reading documents as bytes, and splitting them into a training and a dev side.

Nothing is translated: CRLF stays CRLF, a byte order mark stays. The split knows nothing of the kind of
symbols, so that char, byte and bpe score the same dev bytes and their bits per byte can be compared.
"""

import hashlib
import os
from pathlib import Path

from config import Kind, Split, TextConfig, UserError

MIN_BYTES = 100  # of each side of the split


def read(source: Path, text: TextConfig) -> tuple[list[bytes], list[bytes]]:
    """The training and the dev stretches of a file or folder.

    Raises UserError for what cannot be read, decoded or split.
    """
    _check_knobs(text)
    documents = _read(source)
    if text.kind is not Kind.byte:
        _check_utf8(documents, text.kind)
    train, dev = SPLITS[Split.tail if source.is_file() else text.split](list(documents.values()), text)
    _check_sizes(source, documents, train, dev)
    return train, dev


def by_tail(documents: list[bytes], text: TextConfig) -> tuple[list[bytes], list[bytes]]:
    """The last `dev_fraction` of each document is dev. Shortened, each document gives the same share
    of both sides, next to its cut."""
    cuts = [_boundary(data, round(len(data) * (1 - text.dev_fraction))) for data in documents]
    train = [data[:cut] for data, cut in zip(documents, cuts, strict=True)]
    dev = [data[cut:] for data, cut in zip(documents, cuts, strict=True)]
    return _share(train, text.train_bytes, of_end=True), _share(dev, text.dev_bytes, of_end=False)


def by_document(documents: list[bytes], text: TextConfig) -> tuple[list[bytes], list[bytes]]:
    """Whole documents, in the order of their hashes, are dev until they hold `dev_fraction` of all
    bytes. Shortened, each side keeps its first documents and the beginning of the next."""
    ordered = sorted(documents, key=lambda data: hashlib.sha256(data).digest())
    want = text.dev_fraction * sum(map(len, ordered))
    held, count = 0, 0
    while held < want:
        held, count = held + len(ordered[count]), count + 1
    return _first(ordered[count:], text.train_bytes), _first(ordered[:count], text.dev_bytes)


SPLITS = {Split.tail: by_tail, Split.documents: by_document}


def _boundary(data: bytes, cut: int, step: int = -1) -> int:
    """The first start of a UTF-8 character from `cut` on, downwards or upwards; `cut` where none is near."""
    near = (cut + step * n for n in range(4))
    return next((at for at in near if at >= len(data) or (at >= 0 and data[at] & 0xC0 != 0x80)), cut)


def _share(parts: list[bytes], limit: int | None, of_end: bool) -> list[bytes]:
    """`limit` bytes or up to 3 more, the same fraction of the end, or of the beginning, of each part."""
    total = sum(map(len, parts))
    if limit is None or limit >= total:
        return [part for part in parts if part]
    kept, seen, taken = [], 0, 0
    for part in parts:
        seen += len(part)
        want = max(round(limit * seen / total) - taken, 0)  # what is owed by now: roundings do not add up
        piece = part[_boundary(part, max(len(part) - want, 0)) :] if of_end else part[: _boundary(part, want, 1)]
        taken += len(piece)
        kept.append(piece)
    return [piece for piece in kept if piece]


def _first(parts: list[bytes], limit: int | None) -> list[bytes]:
    """The first `limit` bytes, or up to 3 more: whole parts, and the beginning of the last."""
    kept, left = [], sum(map(len, parts)) if limit is None else limit
    for part in parts:
        piece = part[: _boundary(part, max(left, 0), 1)]
        left -= len(piece)
        kept.append(piece)
    return [piece for piece in kept if piece]


def _read(source: Path) -> dict[str, bytes]:
    """Name and bytes of each distinct, non-empty document: a file, or all files below a folder."""
    documents = {}
    try:
        if not source.exists():
            raise UserError(f"text.path={source}: no such file or folder (a text of conf/text is called text=NAME)")
        if not (source.is_file() or source.is_dir()):
            raise UserError(f"text.path={source}: neither a file nor a folder")
        paths = [source] if source.is_file() else _files(source)
        if not paths:
            raise UserError(f"{source}: no files in this folder (hidden ones are skipped)")
        for path in paths:
            documents.setdefault(path.read_bytes(), str(path))  # of identical documents, the first
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from None
    documents.pop(b"", None)
    if not documents:
        raise UserError(f"{source}: empty; at least {MIN_BYTES} bytes to train on and {MIN_BYTES} to score are needed")
    return {name: data for data, name in documents.items()}


def _files(folder: Path) -> list[Path]:
    """All files below a folder, sorted; hidden files and folders are left out, links to folders not followed."""
    found = []
    for parent, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in files if not name.startswith(".")]
    for path in found:
        if not path.is_file():  # a link to nothing, a pipe: left out, it would change the text without a word
            raise UserError(f"{path}: not a file that can be read")
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _refuse(error: OSError) -> None:
    raise error  # os.walk would leave the folder out without a word


def _check_utf8(documents: dict[str, bytes], kind: Kind) -> None:
    bad = []
    for name, data in documents.items():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            bad.append(f"{name} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}")
    if bad:
        more = f" (and {len(bad) - 3} more files)" if len(bad) > 3 else ""
        raise UserError(
            f"{'; '.join(bad[:3])}{more}. text.kind={kind.value} needs UTF-8, text.kind=byte takes any file"
        )


def _check_knobs(text: TextConfig) -> None:
    if not 0 < text.dev_fraction < 1:
        raise UserError(f"text.dev_fraction={text.dev_fraction}: allowed is anything between 0 and 1")
    for key in ("train_bytes", "dev_bytes"):
        value = getattr(text, key)
        if value is not None and value < MIN_BYTES:
            raise UserError(f"text.{key}={value}: allowed are {MIN_BYTES} or more, or null for all")


def _check_sizes(source: Path, documents: dict[str, bytes], train: list[bytes], dev: list[bytes]) -> None:
    sizes = {"training": sum(map(len, train)), "dev": sum(map(len, dev))}
    for side, size in sizes.items():
        if size < MIN_BYTES:
            raise UserError(
                f"{source}: {sum(map(len, documents.values()))} bytes in {len(documents)} different document(s) leave"
                f" {size} in the {side} split, at least {MIN_BYTES} are needed: take a longer text or another"
                " text.dev_fraction" + ("" if len(documents) > 1 or source.is_file() else " or text.split=tail")
            )
