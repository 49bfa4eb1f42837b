"""The two doors to a run: the command line, and the call that the post's own scripts make.

python train.py swap=gelu seed=1 scale=cpu     one run
python train.py sweeps=mlp_norm                one sweep

The step loop is in training/loop.py.
"""

import hashlib
import sys

from omegaconf import OmegaConf

import cli
from analysis.words import post_line
from config import UserError
from engine.plan import Freezer, slug
from training.loop import run

POST_NAMES = {"norm": {"layer": "layernorm", "rms": "rmsnorm"}}  # the post's values that are called otherwise here


def train(label: str, *, scale: str = "blog", **options) -> dict:
    """Train one run and print the post's line about it. Returns the summary.

    `options` are knobs without their section: steps, dropout, checkpoints, seed, kind, mlp, norm, ...
    The same call again reads the finished run. Raises UserError for an option that is no knob.
    """
    options = {name: POST_NAMES.get(name, {}).get(str(value), value) for name, value in options.items()}
    try:
        composed = cli.compose([f"scale={scale}", "name=post"])
        for name, value in {"label": label, **options}.items():
            OmegaConf.update(composed, cli.knob(name), list(value) if isinstance(value, tuple | range) else value)
    except cli.MISTAKES as error:
        raise UserError(cli.one_line(error)) from None
    digest = hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()[:8]
    job = Freezer().freeze(composed, variant=f"{slug(label)}-{digest}")
    summary = run(job.config, job.folder)
    print(post_line(label, summary["evals"], summary["passes"]))
    return summary


if __name__ == "__main__":
    sys.exit(cli.main())
