"""The parent's side: worker processes that start together and train in turn, A B C, A B C."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from bench.cases import Contender
from config import UserError, to_plain
from engine.plan import Job
from engine.task import environment

ROOT = Path(__file__).parents[1]


class Worker:
    """One process of bench.worker."""

    def __init__(self, contender: Contender, env: dict[str, str], log: IO[str]):
        self.name, self.log = contender.name, log
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker", contender.builder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env=env,
        )

    def send(self, request: dict) -> None:
        with suppress(BrokenPipeError):  # it is dead, as its answer will say
            print(json.dumps(request), file=self.process.stdin, flush=True)

    def answer(self) -> dict:
        """Raises UserError: the worker failed, in its own last words."""
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            words = self.log.read().strip().splitlines() or ["it said nothing"]
            raise UserError(f"{self.name}: ended with exit status {self.process.wait()}: {words[-1]}")
        answer = json.loads(line)
        if "error" in answer:
            raise UserError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        self.process.kill()  # what it would still do, nobody asks for
        self.process.wait()
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


@dataclass(frozen=True)
class Group:
    """A contender's workers."""

    contender: Contender
    workers: list[Worker]

    def build(self, job: Job, peer: Path | None = None) -> dict:
        """Every worker builds its model and warms up. Returns what the first found of its machine."""
        return self.ask(do="build", config=to_plain(job.config), peer=peer and str(peer))[0]

    def ask(self, **request) -> list[dict]:
        """The workers' answers to the same request; they work on it at the same moment."""
        for worker in self.workers:
            worker.send(request)
        return [worker.answer() for worker in self.workers]


@contextmanager
def crew(jobs: dict[Contender, Job]) -> Iterator[list[Group]]:
    """A group for each contender, in the environment that it would meet; all end with the block.

    What a sweep sets for its children depends on the job, so each contender comes with one.
    """
    with ExitStack() as stack:
        groups = []
        for contender, job in jobs.items():
            env = environment(job) if contender.builder == "ours" else dict(os.environ)
            groups.append(Group(contender, []))
            for _ in range(contender.processes):
                worker = Worker(contender, env, stack.enter_context(TemporaryFile("w+")))
                stack.callback(worker.close)
                groups[-1].workers.append(worker)
        for group in groups:  # all import at once; nobody trains while others still do
            for worker in group.workers:
                worker.answer()
        yield groups


def in_turn(groups: list[Group], rounds: int, **request) -> list[list[list[dict]]]:
    """One group after the other trains, `rounds` times: answers by group, round and worker."""
    found: list[list[list[dict]]] = [[] for _ in groups]
    for _ in range(rounds):
        for group, mine in zip(groups, found, strict=True):
            mine.append(group.ask(do="train", **request))
    return found
