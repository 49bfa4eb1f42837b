"""A run's configuration as it stands in the run's folder: written before any work, and compared ever after."""

from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from config import Config, UserError, from_plain
from storage.files import first_line, flatten, load, write_whole, writing
from storage.rundir import had_ended, read

# A finished or half-finished run may be met again with other values of these: they name or place
# a run, or decide what is written down of it, and never move a weight.
FREE = ("about", "wandb", "runs_dir", "results_dir", "name", "machine.device", "machine.threads", "machine.pack",
        "train.log_every", "train.save_every", "eval.batch_size", "text.path")  # fmt: skip


def essential(config: dict) -> dict:
    """The flat configuration without the keys in FREE: two runs with equal ones are the same run."""
    free = tuple(f"{key}." for key in FREE)
    return {key: value for key, value in flatten(config).items() if not f"{key}.".startswith(free)}


def require_same(folder: Path, config: dict) -> dict:
    """The configuration that stands in a folder, {} where there is none. Keys in FREE may differ.

    Raises UserError: another configuration, with each key's two values; foreign or damaged files.
    """
    try:
        stored = load(folder / "config.yaml")
    except ValueError as error:
        raise UserError(f"{folder}: {error}; remove the folder to run this again") from error
    if not stored:
        if strangers := sorted(path.name for path in folder.glob("[!.]*")):
            raise UserError(f"{folder}: not a run's folder: it holds {', '.join(strangers[:3])} but no config.yaml")
        return {}
    old, new = essential(stored), essential(config)
    differing = [
        f"{key} {old.get(key, 'absent')} -> {new.get(key, 'absent')}"
        for key in sorted(old.keys() | new.keys())
        if key not in old or key not in new or old[key] != new[key]
    ]
    if differing:
        raise UserError(
            f"{folder}: holds another configuration: {', '.join(differing)}; "
            "name=... gives these runs a folder of their own, or remove that folder"
        )
    return stored


def require_resolved(config: dict) -> None:
    """Raises UserError for a value that stands for another: in a file from elsewhere it could name a secret."""
    if unresolved := [key for key, value in flatten(config).items() if "${" in str(value)]:
        raise UserError(f"{', '.join(unresolved)}: holds ${{...}}, which no frozen configuration may")


def freeze(folder: Path, config: dict) -> None:
    """Writes config.yaml; a run that has not ended takes new values of the keys in FREE.

    Raises UserError: as `require_same`, or a place that cannot be written.
    """
    require_resolved(config)
    if require_same(folder, config) != config and not had_ended(folder):
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            # OmegaConf quotes a string such as 'no' or '12e34' wherever some reader would take it for another type.
            write_whole(folder / "config.yaml", OmegaConf.to_yaml(config).encode())


def thaw(folder: Path) -> Config:
    """The frozen configuration. Raises UserError where there is none."""
    try:
        plain = load(folder / "config.yaml")
        if not plain:
            raise ValueError("config.yaml is not there")
        require_resolved(plain)
        return from_plain(plain)
    except (ValueError, OmegaConfBaseException) as error:
        raise UserError(f"{folder}: no frozen configuration: {first_line(error)}") from error


def state(folder: Path, config: dict) -> str:
    """The state of the run that a folder holds. Raises UserError where it is another run's."""
    require_same(folder, config)
    return read(folder)["state"]
