"""From the command line to a run or a sweep: Hydra composes, a mistake becomes one line."""

import atexit
import os
import re
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from config import Config, UserError, keys, no_such
from storage.files import first_line

ROOT = Path(__file__).parent
MISTAKES = (UserError, HydraException, OmegaConfBaseException, yaml.YAMLError)
GROUPS = ("swap", "scale", "text", "family", "sweeps")


def main() -> int:
    """Entry of `python train.py`. Returns the exit status: 2 for a mistake of the person who typed it."""
    prepare()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing, so that the line is ours
    return in_one_line(entry) or 0


def in_one_line(call: Callable, *args) -> int:
    """What `call` returns, or 2 and one line on stderr for a mistake of the person who typed the command."""
    try:
        return call(*args)
    except KeyboardInterrupt:  # before there was anything to save
        return 130
    except MISTAKES as error:
        line = one_line(error).encode(errors="backslashreplace").decode()  # a shell can hand over what is no text
        print(f"oneswap: {line}", file=sys.stderr)
    except ValueError as error:
        if not str(error).startswith("Config group override"):  # Hydra's word for swap=null, of no class of its own
            raise
        print(f"oneswap: {', '.join(GROUPS)} take a name: {error}", file=sys.stderr)
    return 2


@hydra.main(version_base="1.3", config_path=str(ROOT / "conf"), config_name="config")
def entry(composed: DictConfig) -> None:
    from engine import launch

    raise SystemExit(in_one_line(launch.single, with_hydra(composed)))


def with_hydra(composed: DictConfig) -> DictConfig:
    """Hydra hands the main function a configuration without its own node; put it back, for the names of the choices."""
    whole = composed.copy()
    with open_dict(whole):
        whole.hydra = HydraConfig.instance().cfg.hydra
    return whole


def prepare() -> None:
    """What Hydra must know before it composes: the schema of config.py and the folder of sweeps/."""
    os.environ["ONESWAP_ROOT"], os.environ["ONESWAP_SCRATCH"] = str(ROOT), scratch()
    ConfigStore.instance().store(name="schema", node=Config)


@cache
def scratch() -> str:
    """A folder that goes when the process ends: Hydra insists on writing a file of its own."""
    folder = tempfile.TemporaryDirectory(prefix="oneswap-")
    atexit.register(folder.cleanup)
    return folder.name


def compose(overrides: list[str]) -> DictConfig:
    """Compose from Python what `python train.py OVERRIDES` composes; the result has its `hydra` node."""
    prepare()
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return hydra.compose("config", overrides, return_hydra_config=True)


def one_line(error: BaseException) -> str:
    """What was wrong and what is allowed, from the several lines of a Hydra or OmegaConf error."""
    if isinstance(error, UserError):
        return str(error)
    text = str(error)
    if unknown := re.search(r"Could not override '([^']+)'|Key '.*' not in '.*'\s+full_key: (\S+)", text):
        return unknown_key(unknown.group(1) or unknown.group(2))
    if missing := re.search(r"Could not find '(.+)/([^/']*)'\s+Available options in '.*':\n((?:\t.*\n?)+)", text):
        group, name, options = missing.groups()
        return f"{group}={name}: {no_such(name, options.split())}"
    if text.startswith("Error merging override") and error.__cause__:
        override = text.removeprefix("Error merging override").strip()
        return f"{override}: {first_line(error.__cause__)}"
    if ambiguous := re.match(r"Ambiguous value for argument '([^']+)'", text):
        return f"{ambiguous.group(1)}: several values need -m (python train.py -m ...), a list needs brackets"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not of the form KEY=VALUE ({first_line(error)})"
    lines = [line.strip() for line in text.splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(("object_type=", "See https://hydra")))


def unknown_key(key: str) -> str:
    """One line for a key that is no knob, with the knobs of its section."""
    knobs = keys(Config())
    section, _, _ = key.rpartition(".")
    if section.startswith("hydra"):
        return f"{key}: unknown. The options of each launcher stand in conf/hydra/launcher"
    known = [knob for knob in knobs if knob.rpartition(".")[0] == section]
    if section and not known:
        return f"{section}: {no_such(section, {knob.partition('.')[0] for knob in knobs if '.' in knob})}"
    return f"{key}: {no_such(key, known if section else known + list(GROUPS))}"


def knob(name: str) -> str:
    """The dotted key of a knob called by its last part, as Python callers do: mlp -> model.mlp.

    Raises UserError for a name that no knob, or more than one, has.
    """
    found = [key for key in keys(Config()) if key.rpartition(".")[2] == name and not key.startswith("run.")]
    exact = [key for key in found if key == name] or found
    if len(exact) != 1:
        ends = {key.rpartition(".")[2] for key in keys(Config())}
        raise UserError(f"{name}: " + (f"could be {' or '.join(exact)}" if exact else no_such(name, ends)))
    return exact[0]
