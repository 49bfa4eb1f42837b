"""The finished runs of the sweep `scaling` as points (N, D, loss), a ladder a text, each with the law fitted to it."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis import runs
from analysis.runs import BASELINE
from analysis.study import study
from calculators import fit as fitting
from calculators.fit import Fit, Points
from config import UserError

SWEEP = "scaling"
LEAST = 3  # values of N, and of D: a constant and a power of it are three unknowns


@dataclass(frozen=True)
class Ladder:
    """The finished runs of the sweep on one text, and the law fitted to them."""

    text: str
    records: list[dict]
    gaps: list[str]  # planned runs without a result
    found: Fit

    @property
    def points(self) -> Points:
        return self.found.points

    @property
    def passes(self) -> np.ndarray:
        return np.array([record["summary"]["passes"] for record in self.records])

    @property
    def cells(self) -> list[np.ndarray]:
        """Of each size and length, the losses of its seeds."""
        keys = list(zip(self.points.N, self.points.D, strict=True))
        return [self.points.loss[[key == one for one in keys]] for key in dict.fromkeys(keys)]


def read(home: Path, draws: int) -> list[Ladder]:
    """A ladder for each text on which the sweep was run.

    Raises UserError: no records, or points that say too little.
    """
    paths = sorted([*home.glob(f"{SWEEP}/records.jsonl"), *home.glob(f"{SWEEP}-*/records.jsonl")])
    if not paths:
        command = f"make sweep S={SWEEP} SCALE={home.name}"
        raise UserError(
            f"{home}: no records of the sweep {SWEEP}; `{command}` makes some, with TEXT=stdlib of a second text"
        )
    found = []
    for path in paths:
        told = study(runs.load(path))
        records = [r for v in told.variants if v.swap == BASELINE for r in v.done.values()]
        try:
            law = fit(points(records), draws)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        found.append(Ladder(told.variants[0].records[0]["text"], records, told.gaps, law))
    return found


def fit(points: Points, draws: int = 1) -> Fit:
    """Raises UserError for too few sizes or lengths, and what calculators.fit refuses."""
    for what, values in (("sizes", points.N), ("lengths", points.D)):
        if (count := len(set(values))) < LEAST:
            raise UserError(f"{what}: {count}, at least {LEAST} are needed to tell a power from a constant")
    return fitting.fit(points, draws)


def points(records: list[dict], params: str = "non_embedding") -> Points:
    summaries = [record["summary"] for record in records]
    return Points(
        np.array([s["params"][params] for s in summaries], float),
        np.array([symbols(record["config"]) for record in records], float),
        np.array([s["final_bpb"] for s in summaries], float),
    )


def symbols(knobs: dict) -> int:
    """That a whole run trains on, repeats counted."""
    return knobs["train.steps"] * knobs["train.batch_size"] * knobs["model.context"]


def points_file(out: Path, ladder: Ladder) -> Path:
    return out / f"points-{ladder.text}.csv"


def points_csv(ladder: Ladder) -> bytes:
    """One line a run, as `python -m calculators.chinchilla fit` reads it."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*fitting.COLUMNS, "seed", "passes"])
    p = ladder.points
    for N, D, loss, record in zip(p.N, p.D, p.loss, ladder.records, strict=True):
        rows.writerow([int(N), int(D), loss, record["seed"], f"{record['summary']['passes']:.3f}"])
    return text.getvalue().encode()


def some(points: Points, kept: np.ndarray) -> Points:
    return Points(points.N[kept], points.D[kept], points.loss[kept])
