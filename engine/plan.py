"""From composed configurations to jobs: every knob checked, every value frozen, before any work starts."""

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from config import Config, UserError, from_plain, lookup, to_plain
from limits import SEAMS, check
from storage import frozen, rundir
from storage.files import flatten
from text import corpus
from text.corpus import Corpus
from training import cost, evaluate, machine, optim

ROOT = Path(__file__).parents[1]
HOME_TEXT = "canterbury"  # the text whose sweeps need no suffix


Compose = Callable[[Iterable[str]], DictConfig]  # from a job's overrides to what Hydra makes of them


@dataclass(frozen=True)
class Job:
    """One run to be: its frozen configuration, and the folder that is its identity."""

    config: Config
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.config.run.variant}/seed{self.config.seed}"

    def of_seed(self, seed: int) -> "Job":
        """The same variant with another seed. All else of the configuration is shared: a large plan stays small."""
        home = self.folder.parent.parent
        return Job(replace(self.config, seed=seed), rundir.place(home, self.config.run.variant, seed))


class Freezer:
    """Freezes composed configurations. Loads each text once. `elsewhere`: they train on GPUs of another machine."""

    def __init__(self, elsewhere: bool = False):
        self.elsewhere = elsewhere
        self.texts: dict[str, Corpus] = {}

    def plan(self, compose: Compose, overrides: list[list[str]], axes: Iterable[str]) -> list[Job]:
        """A job for each list of overrides. The seeds of a variant are composed and frozen once: a quarter of a second.

        Raises UserError as `freeze` does.
        """
        jobs, variants = [], {}
        for items in overrides:
            seeds = [item for item in items if re.fullmatch(r"seed=(0|[1-9]\d*)", item)]
            rest = tuple(item for item in items if item not in seeds)
            if len(seeds) != 1 or rest not in variants:
                composed = compose(items)
                jobs.append(self.freeze(composed, axes))
                if "${seed" not in repr(composed):  # else other values follow from it
                    variants[rest] = jobs[-1]
            else:
                jobs.append(variants[rest].of_seed(int(seeds[0].partition("=")[2])))
        return jobs

    def freeze(self, composed: DictConfig, axes: Iterable[str] = (), variant: str | None = None) -> Job:
        """A job from what Hydra composed. `axes`: swept keys besides swap and seed; they name the variant.

        Raises UserError for any value that the run would stumble over later.
        """
        choices = composed.hydra.runtime.choices
        config = typed(composed)
        lookup(optim.OPTIMIZERS, config.train.optimizer, "train.optimizer")
        optim.require_schedule(config.train)
        cost.require_read(config.model)  # a wrong name or size is told before a text is fetched
        evaluate.require_places(config)
        run = config.run
        run.scale, run.swap = choices.scale, variant or choices.swap
        require_one_seam(choices.swap, config.about.seam)
        run.axes = {key: OmegaConf.select(composed, key) for key in axes}
        run.variant = variant or ",".join([run.swap, *(f"{key}={show(value)}" for key, value in run.axes.items())])
        if config.text.path:
            config.text.name = slug(Path(config.text.path).stem)
            if config.text.name == HOME_TEXT:  # somebody's own, of that name
                config.text.name += "-file"
        run.sweep = slug(config.name or choices.get("sweeps") or "scratch")
        if config.text.name != HOME_TEXT:
            run.sweep += f"-{config.text.name}"
        if family := choices.get("family"):
            run.sweep += f"-{family}"
        if not self.elsewhere:
            config.machine.precision = machine.frozen_precision(config.machine)
        text = self.text(config)
        run.text_sha256, run.vocab_size = text.sha256, text.vocab_size
        cost.require_match(config)
        home = Path(config.runs_dir, run.scale, run.sweep)
        return Job(config, rundir.place(home, run.variant, config.seed))

    def text(self, config: Config) -> Corpus:
        key = repr(config.text)
        if key not in self.texts:
            self.texts[key] = corpus.load(config.text)
        corpus.require(self.texts[key], config.model.context)
        return self.texts[key]


def typed(composed: DictConfig) -> Config:
    """What Hydra composed as the dataclasses of config.py. Raises UserError for a number outside its range."""
    plain = OmegaConf.to_container(OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"]))
    config = from_plain(plain)  # raises for a key that `+` added beside the knobs
    check(config)
    return config


def require_one_seam(swap: str, seam: str) -> None:
    """Raises UserError for a swap file that turns more than the knobs of the seam that it names.

    A file may stand on another swap, which its `defaults` name, and turns one seam more.
    """
    path = ROOT / "conf" / "swap" / f"{swap}.yaml"
    allowed = lookup(SEAMS, seam, f"conf/swap/{swap}.yaml: about.seam")
    turned = flatten(OmegaConf.to_container(OmegaConf.load(path)))
    turned = [key for key in turned if not key.startswith("about.") and key != "defaults"]
    if more := [key for key in turned if key not in allowed]:
        what = ", ".join(allowed) or "nothing"
        raise UserError(f"conf/swap/{swap}.yaml: seam {seam} turns {what}; this file also turns {', '.join(more)}")


def require_distinct(jobs: list[Job]) -> None:
    """Raises UserError for a run planned twice, or two variants that are the same network trained the same way."""
    seen: dict[str, Job] = {}
    for job in jobs:
        plain = {key: value for key, value in to_plain(job.config).items() if key != "run"}
        knobs = repr(frozen.essential(plain)).encode()
        for identity in (str(job.folder), hashlib.sha256(knobs).hexdigest()):
            if identity in seen:
                raise UserError(twice(job, seen[identity]))
            seen[identity] = job


def twice(job: Job, other: Job) -> str:
    if job.folder == other.folder:
        return f"{job.name} is planned twice; a seed counts once"
    return f"{job.name} and {other.name} resolve to the same configuration: nothing is swapped between them"


def show(value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(getattr(value, "value", value))


def slug(name: str) -> str:
    """A name that is safe as a folder."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", str(name)).strip("-.") or "text"
