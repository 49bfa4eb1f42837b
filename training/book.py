"""What one seed's training leaves: rows as they come, evaluations, resume points, and the summary at its end."""

import math
from collections.abc import Callable
from pathlib import Path

from config import Config, UserError, to_plain
from storage.mirror import Mirror
from storage.provenance import provenance
from storage.runlog import RunLog
from text import corpus
from text.corpus import Corpus
from training import cost, evaluate
from training.machine import Machine


class Diverged(Exception):
    """The loss left the finite numbers, or ended worse than it began."""


class Book:
    """A run's folder from its opening to its end. Use as a context manager: an error that leaves it is noted.

    `watch` sees each row of metrics.
    """

    def __init__(self, config: Config, folder: Path, watch: Callable[[dict], None]):
        self.config, self.folder, self.watch = config, folder, watch
        self.plain = to_plain(config)
        self.log = RunLog(folder, self.plain)
        self.mirror: Mirror | None = None
        self.step, self.state = 0, None  # of the resume point
        self.seconds = 0.0  # spent on updates; in a pack, this seed's share
        self.evals: dict[int, float] = {}  # step -> bits per byte

    def __enter__(self) -> "Book":
        self.log.__enter__()
        return self

    def __exit__(self, *error) -> None:
        if self.mirror:
            self.mirror.finish({}, exit_code=1)
        self.log.__exit__(*error)

    def begin(self, machine: Machine, text: Corpus) -> None:
        """Readies the folder, and finds the resume point: `step` updates done, `state` None where there is none.

        Raises UserError for another text than the frozen one, or a resume point made in another precision.
        """
        corpus.require_same(text, self.config.run.text_sha256, self.config.text.name)
        self.machine, self.text = machine, text
        self.log.begin(provenance(machine.facts()))
        self.mirror = Mirror(self.folder, self.plain, self.config.wandb.mode.value)
        if found := self.log.restore():
            self.step, self.state = found
            begun, now = self.state["precision"], machine.precision.value
            if begun != now:
                raise UserError(f"{self.folder}: begun in {begun}, would go on in {now}, on another machine")
            self.seconds, self.evals = self.state["seconds"], self.state["evals"]

    def note(self, step: int, row: dict) -> None:
        """Write a row of metrics. Raises Diverged where the loss is no number."""
        row = {"step": step, **{key: float(value) for key, value in row.items()}}
        self.log.log(row)
        self.mirror.log(row)
        self.watch(row)
        if not math.isfinite(row.get("loss", 0)) or not math.isfinite(row.get("val_bpb", 0)):
            raise Diverged(f"loss is not finite at step {step}")

    def measured(self, step: int, nats: float) -> None:
        """Note the evaluation of the whole dev set. Raises Diverged: no number, or a last one worse than the first."""
        self.evals[step] = corpus.bits_per_byte(nats, self.text)
        self.note(step, {"val_bpb": self.evals[step], "val_nats": nats / self.text.dev_symbols})
        worst = 1.1 * max(evaluate.guess_bpb(self.text), self.evals[0])
        if step == self.config.train.steps and self.evals[step] > worst:
            raise Diverged("ended more than a tenth worse than it began")

    def save(self, step: int, state: dict) -> None:
        """Write a resume point: what the learner holds, and what this book does."""
        mine = {"seconds": self.seconds, "evals": self.evals, "precision": self.machine.precision.value}
        self.log.save(step, {**state, **mine})
        self.log.status("running", step=step)

    def close(self, step: int, weights: dict, outcome: str = "finished", reason: str = "") -> None:
        """Write the end of the run: its summary, its weights, finished or diverged."""
        summary = self.summary(step)
        self.log.finish(summary, weights, outcome, reason)
        self.mirror.finish(summary, exit_code=int(outcome != "finished"))

    def symbols(self, step: int) -> int:
        """Trained on so far, repeats counted."""
        return step * self.config.step_symbols

    def tokens_per_s(self, step: int) -> float:
        return self.symbols(step) / self.seconds if self.seconds else 0.0

    def summary(self, step: int) -> dict:
        text = self.text
        mine, base = cost.require_match(self.config)
        best = min(self.evals, key=self.evals.get)
        return {
            "final_bpb": self.evals.get(self.config.train.steps),
            "best_bpb": self.evals[best],
            "best_step": best,
            "evals": [list(point) for point in sorted(self.evals.items())],
            "passes": self.symbols(step) / len(text.train),
            "train_s": self.seconds,
            "tokens_per_s": self.tokens_per_s(step),
            "peak_mb": self.machine.peak_mb(),
            "params": mine.params,
            "baseline_non_embedding": base.non_embedding,
            "flops_per_token": mine.flops_per_token,
            "kv_bytes_per_token": mine.kv_bytes_per_token,
            "train_bytes": text.train_bytes,
            "dev_bytes": text.dev_bytes,
            "dev_symbols": text.dev_symbols,
            "fallback_bytes": text.fallback_bytes,
            "anchors": text.anchors(),
            "protocol": evaluate.protocol(self.config, text, self.machine.precision.value),
        }
