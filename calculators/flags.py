"""What the calculators' command lines share: numbers with their range, errors in one line, JSON."""

import argparse
import json
import math
import sys
from collections.abc import Callable

from cli import in_one_line
from config import UserError
from storage import files

SUFFIXES = {"k": 1024, "m": 1024**2}  # of a count of tokens: 128k is 131,072


class Parser(argparse.ArgumentParser):
    """Raises UserError, one line, where argparse would print its usage and leave."""

    def error(self, message: str):
        raise UserError(message.removeprefix("argument "))


def run(parser: Parser, answer: Callable[[argparse.Namespace], int], arguments: list[str] | None) -> int:
    """Exit status of a command: 2 and one line for a mistake of the person who typed it."""
    return in_one_line(lambda: answer(parser.parse_args(arguments)))


def positive(text: str) -> float:
    """A finite number above 0. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number above 0")
    return value


def at_least_zero(text: str) -> float:
    return 0.0 if text.strip() in ("0", "0.0") else positive(text)


def whole(text: str) -> int:
    """A whole number of at least 1; 1e9 is one. Raises ArgumentTypeError."""
    value = positive(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number")
    return int(value)


def tokens(text: str) -> int:
    """A count of tokens; 128k is 128 x 1,024. Raises ArgumentTypeError."""
    unit = SUFFIXES.get(text[-1:].lower())
    return whole(text[:-1]) * unit if unit else whole(text)


def window_pattern(text: str) -> tuple[int | None, ...]:
    """Windows that are tiled over the layers, 1024,1024,full -> (1024, 1024, None)."""
    return tuple(None if part.strip() == "full" else tokens(part.strip()) for part in text.split(","))


def print_json(value: dict) -> None:
    sys.stdout.write(files.to_json(value).decode())


def read_json(path) -> dict:
    """The mapping in a JSON file. Raises UserError: not there, not JSON, no mapping."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON: {files.first_line(error)}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: must be a JSON object")
    return value
