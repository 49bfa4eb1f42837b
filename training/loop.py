"""One run: from a frozen configuration to a finished folder. Knows no swap by name."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import gpt
from config import Config, UserError, lookup, to_plain
from storage.mirror import Mirror
from storage.provenance import provenance
from storage.runlog import RunLog
from text import corpus
from text.corpus import Corpus
from training import cost, evaluate, optim
from training.machine import Machine, settle
from training.objective import Objective
from training.stopping import Stopped, stop_signals


class Diverged(Exception):
    """The loss left the finite numbers, or ended worse than it began."""


def run(config: Config, folder: Path, watch: Callable[[dict], None] = lambda row: None) -> dict:
    """Train one frozen configuration in its folder, going on from its last resume point.

    Returns the summary; a run that has ended is read and not touched. `watch` sees each row of metrics.
    Raises UserError for what a person can mend, Diverged for a run without a result, Stopped when asked to stop.
    """
    plain = to_plain(config)
    machine = settle(config.machine)
    with stop_signals() as stopped, RunLog(folder, plain) as log:
        if log.state == "diverged":
            raise Diverged(log.reason)
        if log.state == "finished":
            return log.summary
        text = corpus.load(config.text)
        corpus.require(text, config.model.context)
        if config.run.text_sha256 != text.sha256:
            raise UserError(f"text {config.text.name}: not the text that this run was frozen with")
        training = Run(config, machine, text, log, watch)
        log.begin(provenance(machine.facts()))
        return training.go(Mirror(folder, plain, config.wandb.mode.value), stopped)


class Run:
    """The state of one training run and its step loop."""

    def __init__(self, config: Config, machine: Machine, text: Corpus, log: RunLog, watch: Callable[[dict], None]):
        self.config, self.machine, self.text, self.log, self.watch = config, machine, text, log, watch
        self.model = gpt.GPT(config.model, text.vocab_size).init(config.seed).to(machine.device)
        objective = Objective(self.model, config.train)
        self.objective = torch.compile(objective) if machine.compile else objective
        self.optimizer = lookup(optim.OPTIMIZERS, config.train.optimizer, "train.optimizer")(self.model, config.train)
        self.step, self.seconds = 0, 0.0  # updates done, seconds spent on them
        self.evals: dict[int, float] = {}  # step -> bits per byte

    def go(self, mirror: Mirror, stopped: Callable[[], int]) -> dict:
        """Train to the end and write the summary. The mirror is closed on every path out; the log notes the rest.

        `stopped` gives the number of the signal that asks for a stop, or 0.
        """
        self.mirror, outcome, reason = mirror, "finished", ""
        try:
            self.restore()
            try:
                self.loop(stopped)
                self.require_progress()
            except Diverged as error:
                outcome, reason = "diverged", str(error)
            summary = self.summary()
            self.log.finish(summary, self.model.state_dict(), outcome, reason)
        except BaseException:
            mirror.finish({}, exit_code=1)
            raise
        mirror.finish(summary, exit_code=int(outcome != "finished"))
        if outcome == "diverged":
            raise Diverged(reason)
        return summary

    def loop(self, stopped: Callable[[], int]) -> None:
        c = self.config.train
        if self.step == 0:
            self.measure()
        while self.step < c.steps:
            started, done = time.perf_counter(), self.step + 1
            last = done == c.steps
            to_log, to_measure = last or done % c.log_every == 0, last or done in c.checkpoints
            to_save = not last and (done % c.save_every == 0 or stopped())
            row = self.update()
            if to_log or to_measure or to_save:
                self.machine.wait()  # so that what was queued counts as training
            self.seconds += time.perf_counter() - started
            if to_log:
                self.note({**{key: float(value) for key, value in row.items()}, "tokens_per_s": self.tokens_per_s()})
            if to_measure:
                self.measure()
            if to_save:
                self.save()  # after the rows of this step: what is resumed has them all
            if to_save and stopped():
                raise Stopped(stopped())

    def update(self) -> dict:
        """One step. What it draws depends on (seed, step) alone: a resumed run needs no generator's state."""
        c = self.config
        inputs, targets = corpus.batch(self.text, c.seed, self.step, c.train.batch_size, c.model.context)
        torch.manual_seed(gpt.stream(c.seed, "dropout", self.step))
        lr = optim.rate(self.step, c.train)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with self.machine.autocast():
            row = self.objective(inputs.to(self.machine.device), targets.to(self.machine.device))
        row.pop("total").backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), c.train.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return {**row, "grad_norm": norm, "lr": lr}

    def note(self, row: dict) -> None:
        """Write a row of metrics. Raises Diverged where the loss is no number."""
        row = {"step": self.step, **row}
        self.log.log(row)
        self.mirror.log(row)
        self.watch(row)
        if not math.isfinite(row.get("loss", 0)) or not math.isfinite(row.get("val_bpb", 0)):
            raise Diverged(f"loss is not finite at step {self.step}")

    def measure(self) -> None:
        nats = evaluate.dev_nats(self.model, self.text, self.config, self.machine)
        self.evals[self.step] = corpus.bits_per_byte(nats, self.text)
        self.note({"val_bpb": self.evals[self.step], "val_nats": nats / self.text.dev_symbols})

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "seconds": self.seconds,
            "evals": self.evals,
            "precision": self.machine.precision.value,
        }
        self.log.save(self.step, state)
        self.log.status("running", step=self.step)

    def restore(self) -> None:
        found = self.log.restore()
        if found is None:
            return
        self.step, state = found
        begun, now = state["precision"], self.machine.precision.value
        if begun != now:
            raise UserError(f"{self.log.folder}: begun in {begun}, would go on in {now}, on another machine")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.seconds, self.evals = state["seconds"], state["evals"]

    def tokens_per_s(self) -> float:
        return self.symbols() / self.seconds if self.seconds else 0.0

    def symbols(self) -> int:
        """Trained on so far, repeats counted."""
        return self.step * self.config.train.batch_size * self.config.model.context

    def require_progress(self) -> None:
        """Raises Diverged for a run that ended clearly above both a uniform guess and its own start."""
        if self.evals[self.step] > 1.1 * max(evaluate.guess_bpb(self.text), self.evals[0]):
            raise Diverged("ended more than a tenth worse than it began")

    def summary(self) -> dict:
        text = self.text
        mine, base = cost.require_match(self.config)
        best = min(self.evals, key=self.evals.get)
        return {
            "final_bpb": self.evals.get(self.config.train.steps),
            "best_bpb": self.evals[best],
            "best_step": best,
            "evals": [list(point) for point in sorted(self.evals.items())],
            "passes": self.symbols() / len(text.train),
            "train_s": self.seconds,
            "tokens_per_s": self.tokens_per_s(),
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
