"""Weights into a GPT, one tensor at a time: all names and shapes are checked before the first number is copied."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from config import ModelConfig, UserError, lookup
from families.layout import CHANGES, PARTS
from families.names import NAMES, Names, Table
from families.settings import settings
from gpt import GPT


@dataclass(frozen=True)
class Copy:
    """Where one stored tensor, or a piece of it, goes."""

    target: str
    part: Callable
    change: Callable
    expert: int


@dataclass(frozen=True)
class Stored:
    """Tensors by name: their shapes, and how to get one."""

    shapes: dict[str, tuple[int, ...]]
    get: Callable[[str], Tensor]


def from_hf(model) -> GPT:
    """A `transformers` causal language model as a GPT with weights of its own, in evaluation mode.

    Raises UserError, naming it, for an unknown class or setting, and for a tensor that is missing, surplus or of a
    wrong shape.
    """
    state = model.state_dict()
    return built(model.config, Stored({name: tuple(t.shape) for name, t in state.items()}, state.__getitem__))


def load(folder: str | Path, dtype: torch.dtype | None = None) -> GPT:
    """The same from a folder with config.json and safetensors. `dtype`: null, as stored.

    A file is opened anew for each tensor, so that no more than one of them is in memory besides the model.
    """
    folder = Path(folder)
    return built(configuration(folder), on_disk(folder), dtype)


def configuration(folder: Path):
    """What config.json says, as a `transformers` configuration.

    Raises UserError for a folder without one, a class that is unknown, and where transformers is not installed.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{path}: no such file; a checkpoint is a folder with config.json and *.safetensors")
    lookup(NAMES, json.loads(path.read_text()).get("model_type"), f"{path}: model_type")
    try:
        from transformers import AutoConfig
    except ImportError:
        raise UserError('a checkpoint is read with transformers: pip install ".[families]"') from None
    return AutoConfig.from_pretrained(folder, local_files_only=True)


def on_disk(folder: Path) -> Stored:
    """Raises UserError where no file of weights is."""
    from safetensors import safe_open

    homes, shapes = {}, {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (no dict)
                homes[name], shapes[name] = path, tuple(file.get_slice(name).get_shape())
    if not homes:
        raise UserError(f"{folder}: no *.safetensors in it")

    def get(name: str) -> Tensor:
        with safe_open(homes[name], "pt") as file:
            return file.get_tensor(name)

    return Stored(shapes, get)


def built(config, stored: Stored, dtype: torch.dtype | None = None) -> GPT:
    c, names = settings(config), lookup(NAMES, config.model_type, "model_type")
    model = without_weights(c, config.vocab_size)
    empty = model.state_dict()
    plan = planned(c, names, stored, empty)
    check_shapes(c, plan, stored, empty)
    filled = {}
    for name, copies in plan.items():
        tensor = stored.get(name)
        for copy in copies:
            if copy.target not in filled:
                filled[copy.target] = torch.empty(empty[copy.target].shape, dtype=dtype or tensor.dtype)
            copy.part(filled[copy.target], c, copy.expert).copy_(copy.change(tensor, c))
    model.load_state_dict(filled, assign=True)
    return model.requires_grad_(True).eval()


def without_weights(c: ModelConfig, vocab_size: int) -> GPT:
    """A GPT whose parameters take no memory; what is computed from the configuration is there."""

    def meta(module, name, parameter):
        return None if parameter is None else nn.Parameter(parameter.to("meta"))

    with register_module_parameter_registration_hook(meta):
        return GPT(c, vocab_size)


def planned(c: ModelConfig, names: Names, stored: Stored, empty: dict[str, Tensor]) -> dict[str, list[Copy]]:
    """Stored name -> what is copied from it. Raises UserError for a name too few or too many."""
    known = {}
    for name in stored.shapes:
        if not any(re.search(pattern, name) for pattern in (*names.ignored, *of_no_use(c, names))):
            known[renamed(name, names.aliases)] = name
    wanted = expected(c, names, known, empty)
    if missing := [name for name in wanted if name not in known]:
        raise UserError(f"{missing[0]}: missing from the checkpoint{others(missing)}")
    if surplus := [name for canonical, name in known.items() if canonical not in wanted]:
        raise UserError(f"{surplus[0]}: no place for this tensor in such a model{others(surplus)}")
    reached = {copy.target for found in wanted.values() for copy in found}
    if unreached := [target for target in empty if target not in reached]:
        raise UserError(
            f"{unreached[0]}: such a model needs it, and nothing in the checkpoint is it{others(unreached)}"
        )
    return {known[name]: copies for name, copies in wanted.items()}


def others(names: list[str]) -> str:
    return f", and {len(names) - 1} more" if len(names) > 1 else ""


def of_no_use(c: ModelConfig, names: Names) -> list[str]:
    """Patterns: a tied table that is stored twice, and the layer behind the last, which only looks further ahead."""
    twice = [r"^lm_head\.weight$"] if c.tied else []
    return twice + ([rf"^{re.escape(names.layer)}{c.n_layer}\."] if names.ahead else [])


def renamed(name: str, aliases: dict[str, str]) -> str:
    for pattern, replacement in aliases.items():
        name = re.sub(pattern, replacement, name)
    return name


def expected(c: ModelConfig, names: Names, known: dict, empty: dict[str, Tensor]) -> dict[str, list[Copy]]:
    """Every tensor that the class has with these settings."""
    found = copies(names.outer, "", "", empty)
    one_each = any(re.search(r"\.experts\.\d+\.", name) for name in known)
    for layer in range(c.n_layer):
        table = dict(names.inner)
        mixture: Table = names.each if one_each else names.fused
        table |= names.dense if layer < c.first_dense else {k: v for k, v in mixture.items() if ".{}." not in k}
        stem, target = f"{names.layer}{layer}.", f"blocks.{layer}."
        found |= copies(table, stem, target, empty)
        if layer >= c.first_dense and one_each:
            for expert in range(c.n_experts):
                each = {k.format(expert): v for k, v in mixture.items() if ".{}." in k}
                found |= copies(each, stem, target, empty, expert)
    return found


def copies(table: Table, stem: str, start: str, empty: dict[str, Tensor], expert: int = 0) -> dict[str, list[Copy]]:
    """Of the entries of a table, those whose target the model has."""
    found = {}
    for name, pieces in table.items():
        for piece in (pieces,) if isinstance(pieces, str) else pieces:
            target, part, change = [*piece.split(), *DEFAULT[len(piece.split()) :]]
            if start + target in empty:
                copy = Copy(start + target, PARTS[part], CHANGES[change], expert)
                found.setdefault(stem + name, []).append(copy)
    return found


DEFAULT = ["", "all", "same"]


def check_shapes(c: ModelConfig, plan: dict[str, list[Copy]], stored: Stored, empty: dict[str, Tensor]) -> None:
    """Raises UserError for a tensor that does not fill its place. Nothing is computed: all is done without numbers."""
    for name, found in plan.items():
        for copy in found:
            place = copy.part(empty[copy.target].to("meta"), c, copy.expert).shape
            try:
                shape = copy.change(torch.empty(stored.shapes[name], device="meta"), c).shape
            except (RuntimeError, IndexError):
                shape = None
            if shape != place:
                fits = " x ".join(map(str, place))
                raise UserError(f"{name}: shape {list(stored.shapes[name])} does not fill {copy.target} ({fits})")
