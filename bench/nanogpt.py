"""A checkout of nanoGPT: whether it is one, and its own model. Nothing of it stands in this project."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from config import UserError


def require(checkout: Path, *names: str) -> None:
    """Raises UserError where one of the files is not in it."""
    if missing := [name for name in names if not (checkout / name).is_file()]:
        raise UserError(f"--peer={checkout}: no checkout of nanoGPT, {missing[0]} is not in it")


def model_module(checkout: Path) -> ModuleType:
    """Its model.py."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
