"""Small files that are whole or not there: how the project reads and writes JSON and YAML."""

import json
import math
import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from config import UserError

YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where it is there: ten times as fast


def warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr, flush=True)


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its kind where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def flatten(config: dict, prefix: str = "") -> dict:
    """Nested sections as dotted keys."""
    flat = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def load(path: Path) -> dict:
    """The mapping in a JSON or YAML file; empty where there is no file. Raises ValueError: not whole."""
    try:
        text = path.read_text()
        value = json.loads(text) if path.suffix == ".json" else yaml.load(text, YAML)
    except FileNotFoundError:
        return {}
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path.name} is damaged: {first_line(error)}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is damaged: it starts with {text[:20]!r}")
    return value


@contextmanager
def writing(place: Path):
    """What the file system refuses becomes one line that names the place."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{place}: cannot be written: {error.strerror or error}") from error


def write_whole(path: Path, data: bytes) -> None:
    """All of `data` under its name, or the old file as it was. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    with suppress(OSError):  # some file systems cannot sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def save(path: Path, data: bytes) -> None:
    """Like `write_whole`, and makes the folders above. Raises UserError: the place cannot be written."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)


def _finite(value):
    """The same structure with null for nan and inf."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: dict, indent: int | None = 1) -> bytes:
    return (json.dumps(_finite(value), indent=indent) + "\n").encode()
