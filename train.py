"""One run: from a frozen configuration to a finished folder. Knows no swap by name.

python train.py swap=gelu seed=1 scale=cpu     one run
python train.py sweeps=mlp_norm                one sweep (launch.py does the rest)
"""

import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from omegaconf import OmegaConf
from torch import nn

import corpus as corpora
import cost
import evaluate
import gpt
import machine as machines
import optim
from config import Config, UserError, lookup, to_plain
from corpus import Corpus
from machine import Machine
from mirror import Mirror
from provenance import provenance
from runlog import RunLog
from stopping import Stopped, stop_signals


class Diverged(Exception):
    """The loss left the finite numbers, or ended worse than guessing."""


def run(config: Config, folder: Path, watch: Callable[[dict], None] = lambda row: None) -> dict:
    """Train one frozen configuration in its folder, going on from its last resume point.

    Returns the summary; a finished folder is read and not touched. `watch` sees each row of metrics.
    Raises UserError for what a person can mend, Diverged for a run that has no result.
    """
    machine = machines.settle(config.machine)
    with stop_signals() as stopped, RunLog(folder, to_plain(config)) as log:
        if log.state == "diverged":
            raise Diverged(log.reason)
        if log.state == "finished":
            return log.summary
        text = corpora.load(config.text)
        require_same_text(config, text)
        log.begin(provenance(machine.facts()))
        mirror = Mirror(folder, to_plain(config), config.wandb.mode.value)
        return Run(config, machine, text, log, mirror, watch).go(stopped)


def require_same_text(config: Config, text: Corpus) -> None:
    corpora.require(text, config.model.context)
    if config.run.text_sha256 not in ("", text.sha256):
        raise UserError(f"text {config.text.name}: not the text that this run was frozen with; name=... starts anew")


class Run:
    """The state of one training run and its step loop."""

    def __init__(self, config: Config, machine: Machine, text: Corpus, log: RunLog, mirror: Mirror, watch: Callable):
        self.config, self.machine, self.text = config, machine, text
        self.log, self.mirror, self.watch = log, mirror, watch
        self.model = gpt.GPT(config.model, text.vocab_size).init(config.seed).to(machine.device)
        self.forward = torch.compile(self.model) if machine.compile else self.model
        self.optimizer = lookup(optim.OPTIMIZERS, config.train.optimizer, "train.optimizer")(self.model, config.train)
        self.step, self.seconds = 0, 0.0  # updates done, seconds spent on them
        self.evals: dict[int, float] = {}  # step -> bits per byte

    def go(self, stopped: Callable[[], int]) -> dict:
        """Train to the end and write the summary. The mirror is closed on every path out; the log notes the rest.

        `stopped` gives the number of the signal that asks for a stop, or 0.
        """
        outcome, reason = "finished", ""
        try:
            self.restore()
            try:
                self.loop(stopped)
                self.require_better_than_guessing()
            except Diverged as error:
                outcome, reason = "diverged", str(error)
            summary = self.summary()
            self.log.finish(summary, self.model.state_dict(), outcome, reason)
        except BaseException:
            self.mirror.finish({}, exit_code=1)
            raise
        self.mirror.finish(summary, exit_code=int(outcome != "finished"))
        if outcome == "diverged":
            raise Diverged(reason)
        return summary

    def loop(self, stopped: Callable[[], int]) -> None:
        c = self.config.train
        if self.step == 0:
            self.measure()
        while self.step < c.steps:
            self.update()
            last = self.step == c.steps
            if last or self.step in c.checkpoints:
                self.measure()
            if not last and (stopped() or self.step % c.save_every == 0):
                self.save()  # after the rows of this step: what is resumed has them all
            if not last and stopped():
                raise Stopped(stopped())

    def update(self) -> None:
        """One step. What it draws depends on (seed, step) alone: a resumed run needs no generator's state."""
        c, started = self.config, time.perf_counter()
        inputs, targets = corpora.batch(self.text, c.seed, self.step, c.train.batch_size, c.model.context)
        torch.manual_seed(gpt.stream(c.seed, "dropout", self.step))
        lr = optim.rate(self.step, c.train)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with self.machine.autocast():
            logits = self.forward(inputs.to(self.machine.device))
        loss = gpt.loss(logits, targets.to(self.machine.device))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), c.train.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        last = self.step == c.train.steps
        if self.step % c.train.log_every == 0 or last:
            self.note({"loss": loss.item(), "grad_norm": norm.item(), "lr": lr})
        self.seconds += time.perf_counter() - started

    def note(self, row: dict) -> None:
        """Write a row of metrics. Raises Diverged where the loss is no number."""
        row = {"step": self.step, **row}
        if "loss" in row:
            row["tokens_per_s"] = self.tokens_per_s()
        self.log.log(row)
        self.mirror.log(row)
        self.watch(row)
        if not all(torch.isfinite(torch.tensor(row[key])) for key in ("loss", "val_bpb") if key in row):
            raise Diverged(f"loss is not finite at step {self.step}")

    def measure(self) -> None:
        nats = evaluate.dev_nats(self.model, self.text, self.config, self.machine)
        self.evals[self.step] = corpora.bits_per_byte(nats, self.text)
        self.note({"val_bpb": self.evals[self.step], "val_nats": nats / self.text.dev_symbols})

    def save(self) -> None:
        self.log.save(
            self.step,
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "seconds": self.seconds,
                "evals": self.evals,
                "precision": self.machine.precision.value,
            },
        )
        self.log.status("running", step=self.step)

    def restore(self) -> None:
        found = self.log.restore()
        if found is None:
            return
        self.step, state = found
        if state["precision"] != self.machine.precision.value:
            raise UserError(
                f"{self.log.folder}: begun in {state['precision']}, this machine would go on in "
                f"{self.machine.precision.value}; machine.precision={state['precision']} goes on as begun"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.seconds, self.evals = state["seconds"], state["evals"]

    def tokens_per_s(self) -> float:
        self.machine.wait()
        symbols = self.step * self.config.train.batch_size * self.config.model.context
        return symbols / self.seconds if self.seconds else 0.0

    def require_better_than_guessing(self) -> None:
        if self.step and self.evals[self.step] > 1.1 * evaluate.guess_bpb(self.text):
            raise Diverged("ended more than a tenth worse than a uniform guess")

    def summary(self) -> dict:
        c, text = self.config, self.text
        mine, base = cost.require_match(c)
        best = min(self.evals, key=self.evals.get) if self.evals else None
        symbols = self.step * c.train.batch_size * c.model.context
        return {
            "final_bpb": self.evals.get(c.train.steps),
            "best_bpb": self.evals.get(best),
            "best_step": best,
            "evals": sorted(self.evals.items()),
            "passes": symbols / len(text.train),
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
            "protocol": evaluate.protocol(c, text, self.machine.precision.value),
        }


POST_NAMES = {"norm": {"layer": "layernorm", "rms": "rmsnorm"}}  # the post's values that are called otherwise here


def train(label: str, *, scale: str = "blog", **options) -> dict:
    """The post's own call: train one run and print its line. Returns the summary.

    `options` are knobs without their section: steps, dropout, checkpoints, seed, kind, mlp, norm, ...
    The same call again reads the finished run. Raises UserError for an option that is no knob.
    """
    import cli
    from analysis.tables import post_line
    from plan import Freezer, slug

    options = {name: POST_NAMES.get(name, {}).get(str(value), value) for name, value in options.items()}
    composed = cli.compose([f"scale={scale}", "name=post"])
    for name, value in {"label": label, **options}.items():
        OmegaConf.update(composed, cli.knob(name), value)
    digest = hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()[:8]
    job = Freezer().freeze(composed, variant=f"{slug(label)}-{digest}")
    summary = run(job.config, job.folder)
    print(post_line(label, summary["evals"], summary["passes"]))
    return summary


if __name__ == "__main__":
    import cli

    sys.exit(cli.main())
