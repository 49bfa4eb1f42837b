"""A finished run writes on: the prompt is read once, then a symbol at a time with a key/value cache.

python generate.py run=runs/cpu/blog/baseline/seed0 prompt="Alice was " tokens=200 temperature=0.8 top_k=20 seed=1
"""

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

import gpt
from cli import in_one_line
from config import Config, GenerateConfig, Precision, UserError, lookup, no_such
from limits import check_generate
from parts.memory import Memory
from parts.positions import POSITIONS, NoPosition
from storage import frozen, rundir, tensors
from storage.files import first_line, warn
from text import corpus
from text.corpus import Corpus
from text.symbols import BOS, ESCAPE
from training import machine


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 2 for a mistake of the person who typed the command."""
    return in_one_line(speak, sys.argv[1:] if arguments is None else arguments)


def speak(arguments: list[str]) -> int:
    c = parsed(arguments)
    config = finished(c)
    text = corpus.load(config.text)
    corpus.require_same(text, config.run.text_sha256, config.text.name)
    ids = prompted(c, text)
    device = machine.settle(replace(config.machine, device=c.device, precision=Precision.fp32, compile=False)).device
    model = trained(Path(c.run), config).to(device)
    require_room(len(ids) + c.tokens - 1, config.model, c)
    choose = chooser(c, text.codec.reserved)
    print(text.decode(written(model, ids.to(device), c.tokens, choose, c.cache).cpu()))
    return 0


# ---- what was asked for ----


def parsed(arguments: list[str]) -> GenerateConfig:
    """KEY=VALUE words, the values as they stand: a prompt needs no quotes but the shell's.

    Raises UserError for a key that is none, or a value of the wrong type or size.
    """
    c, names = OmegaConf.structured(GenerateConfig), [f.name for f in fields(GenerateConfig)]
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise UserError(f"{argument}: not of the form KEY=VALUE")
        if key not in names:
            raise UserError(f"{key}: {no_such(key, names)}")
        try:
            c[key] = None if value == "null" and key != "prompt" else value
        except OmegaConfBaseException as error:
            raise UserError(f"{argument}: {first_line(error)}") from None
    c = OmegaConf.to_object(c)
    check_generate(c)
    return c


def finished(c: GenerateConfig) -> Config:
    """The configuration of the run. Raises UserError where there is none, or one that has not finished."""
    folder = Path(c.run)
    if not folder.is_dir():
        raise UserError(f"run={c.run}: no such folder")
    config, found = frozen.thaw(folder), rundir.read(folder)
    if found["state"] != "finished":
        reason = f" ({found['reason']})" if found["reason"] else ""
        raise UserError(f"run={c.run}: {found['state']} at step {found['step']}{reason}; it must be finished")
    return config


def prompted(c: GenerateConfig, text: Corpus) -> Tensor:
    """BOS and the prompt's symbols (n,). Raises UserError for characters that the run's training text does not have."""
    ids = text.encode(c.prompt)
    if text.codec.reserved > ESCAPE and (ids == ESCAPE).any():
        unknown = sorted({c.prompt[i] for i in (ids == ESCAPE).nonzero().flatten()})
        raise UserError(f"prompt: not in the run's training text: {' '.join(map(repr, unknown))}")
    return torch.cat([torch.tensor([BOS]), ids])


def require_room(places: int, model, c: GenerateConfig) -> None:
    """Warns of a text longer than trained on. Raises UserError where the model has no places for it."""
    if places <= model.context:
        return
    if not lookup(POSITIONS, model.position, "model.position").endless:
        most = max(0, c.tokens - (places - model.context))
        limits = f"model.position={model.position} has the places of model.context={model.context} alone"
        raise UserError(f"tokens={c.tokens}: {limits}; behind this prompt at most {most}")
    warn(f"{places} symbols are more than the {model.context} that this run was trained on")


def trained(folder: Path, config: Config) -> gpt.GPT:
    """The run's model. Raises UserError where its weights are damaged or not there."""
    model = gpt.GPT(config.model, config.run.vocab_size)
    try:
        model.load_state_dict(tensors.load(folder / "model.pt"))
    except Exception as error:  # a damaged file can make the readers raise anything
        raise UserError(f"{folder / 'model.pt'}: {first_line(error)}") from error
    return model.eval()


# ---- writing ----


@torch.inference_mode()
def written(model: gpt.GPT, ids: Tensor, count: int, choose: Callable[[Tensor], Tensor], cache: bool = True) -> Tensor:
    """The symbols ids (n,) and `count` more, each chosen from its logits (V,)."""
    known, room = len(ids), len(ids) + count - 1  # the last symbol is not read
    for module in model.modules():
        if isinstance(module, NoPosition):
            module.reach(room)
    reader = READERS[cache](model, room)
    text = torch.cat([ids, ids.new_empty(count)])
    for place in range(known, known + count):
        text[place] = choose(reader(text[None, :place])[0])
    return text


class Remembering:
    """Reads what is new alone: the whole prompt first, then a symbol at a time."""

    def __init__(self, model: gpt.GPT, room: int):
        self.model, self.memory = model, Memory(model.position, len(model.blocks), room)

    def __call__(self, ids):
        """ids (B, n) of the text so far -> logits (B, V) of the next symbol."""
        return self.model.unembed(self.model.states(ids[:, self.memory.end :], self.memory)[:, -1])


class Rereading:
    """Reads the whole text anew for each symbol: what a cache is held to."""

    def __init__(self, model: gpt.GPT, room: int):
        self.model = model

    def __call__(self, ids):
        return self.model.unembed(self.model.states(ids)[:, -1])


READERS = {True: Remembering, False: Rereading}


def chooser(c: GenerateConfig, reserved: int) -> Callable[[Tensor], Tensor]:
    """A function from logits (V,) to a symbol, none of the first `reserved`. Its draws follow from c.seed alone."""
    if c.temperature == 0:
        return lambda logits: logits[reserved:].argmax() + reserved
    generator = torch.Generator().manual_seed(gpt.stream(c.seed, "sampling"))

    def choose(logits):
        logits = logits[reserved:].float().cpu() / c.temperature
        for limit, value in ((likeliest, c.top_k), (nucleus, c.top_p)):
            logits = logits if value is None else limit(logits, value)
        return torch.multinomial(logits.softmax(-1), 1, generator=generator)[0] + reserved

    return choose


def likeliest(logits, count: int):
    """All but the `count` highest at -inf (Fan et al. 2018, arXiv:1805.04833)."""
    least = logits.topk(min(count, len(logits))).values[-1]
    return logits.masked_fill(logits < least, float("-inf"))


def nucleus(logits, share: float):
    """All at -inf but the fewest that together have `share` of the probability (arXiv:1904.09751)."""
    p, order = logits.softmax(-1).sort(descending=True)
    beyond = p.cumsum(-1) - p >= share  # those before it have the share already
    return logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), float("-inf"))


if __name__ == "__main__":
    sys.exit(main())
