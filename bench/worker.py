"""A process that trains when it is told to: one JSON request a line on stdin, one JSON answer a line on stdout.

python -m bench.worker NAME     NAME is one of learners.BUILDERS
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

from bench import matrix, norms
from bench.learners import BUILDERS, Task
from config import from_plain, lookup
from storage.files import first_line
from text import corpus
from training.machine import settle

WARM_UP = 2  # steps, the compiler's work included
LEAST = 3  # whole steps of a round, however slow they are


class Worker:
    """What one contender's process holds between two requests."""

    def __init__(self, name: str):
        self.builder = lookup(BUILDERS, name, "NAME")

    def build(self, config: dict, peer: str | None) -> dict:
        torch.compiler.reset()  # else shapes of the size before make the compiler write for any shape
        self.config = from_plain(config)
        self.machine = settle(self.config.machine)
        text = corpus.load(self.config.text)
        self.step = self.builder(Task(self.config, self.machine, text, peer and Path(peer)))
        for _ in range(WARM_UP):
            self.step()
        self.machine.wait()
        return self.machine.facts()

    def train(self, seconds: float, with_matrix: bool) -> dict:
        """Whole steps for about `seconds`. Rates in tokens and in matrix FLOPs per second, memory in MB."""
        steps, started = 0, time.perf_counter()
        while steps < LEAST or time.perf_counter() - started < seconds:
            self.step()
            steps += 1
        self.machine.wait()
        per_step = (time.perf_counter() - started) / steps
        tokens = self.config.step_symbols
        seeds = self.config.machine.pack or 1
        rate = matrix.rate(tokens, self.config.model.d_model, self.machine) if with_matrix else None
        return {
            "tokens_per_s": seeds * tokens / per_step,
            "step_s": per_step,
            "matrix_flops_per_s": rate,
            "peak_mb": self.machine.peak_mb(),
        }

    def norms(self, shapes: list[str], rounds: int, seconds: float) -> dict:
        return {"norms": norms.measure(self.machine, shapes, rounds, seconds)}


def serve(name: str) -> None:
    """Answers until stdin closes. An error becomes an answer: {"error": one line}."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a peer prints must not stand among the answers
    worker = Worker(name)
    print("{}", file=answers)  # ready
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:  # whatever a peer may raise
            answer = {"error": f"{type(error).__name__}: {first_line(error)}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    serve(sys.argv[1])
