"""The step loop: from frozen configurations to finished folders. Knows no swap by name."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

from config import Config
from text import corpus
from text.corpus import Corpus
from training.book import Book, Diverged
from training.learner import Learner
from training.machine import Machine, settle
from training.packed import Pack
from training.stopping import Stopped, stop_signals

Runs = list[tuple[Config, Path, Callable[[dict], None]]]


def run(config: Config, folder: Path, watch: Callable[[dict], None] = lambda row: None) -> dict:
    """Train one frozen configuration in its folder; `watch` sees each row of metrics. Returns the summary.

    Raises as `together` does.
    """
    return together([(config, folder, watch)])[0]


def together(runs: Runs) -> list[dict]:
    """Train the seeds of one variant side by side, each in its folder, going on from its last resume point.

    Returns the summaries; a run that has ended is read and not touched. Raises UserError for what a person can
    mend, Stopped when asked to stop, and Diverged, when all have ended, for runs without a result.
    """
    config = runs[0][0]
    machine = settle(config.machine)
    with stop_signals() as stopped, ExitStack() as open_books:
        books = [open_books.enter_context(Book(*one)) for one in runs]
        if todo := [book for book in books if not book.log.ended]:
            text = corpus.load(config.text)
            corpus.require(text, config.model.context)
            for book in todo:
                book.begin(machine, text)
            todo.sort(key=lambda book: book.step)  # killed between two saves, some are a resume point behind
            for _, level in groupby(todo, key=lambda book: book.step):
                Loop(list(level), machine, text).go(stopped)
    if bad := [book.log.reason for book in books if book.log.state == "diverged"]:
        raise Diverged("; ".join(dict.fromkeys(bad)))
    return [book.log.summary for book in books]


class Loop:
    """Runs that are at the same step, and what learns for them."""

    def __init__(self, books: list[Book], machine: Machine, text: Corpus):
        configs = [book.config for book in books]
        self.books, self.machine, self.config = dict(enumerate(books)), machine, configs[0]
        self.learner = (Learner if len(books) == 1 else Pack)(configs, machine, text)
        self.step = books[0].step
        if self.step:
            self.learner.load([book.state for book in books])
        for book in books:
            book.state = None  # its memory is the learner's now

    def go(self, stopped: Callable[[], int]) -> None:
        """Train to the end of every run. `stopped` gives the number of the signal that asks for a stop, or 0."""
        c = self.config.train
        if self.step == 0:
            self.measure()
        while self.step < c.steps and self.books:
            started, done = time.perf_counter(), self.step + 1
            last = done == c.steps
            to_log, to_measure = last or done % c.log_every == 0, last or done in c.checkpoints
            to_save = not last and (done % c.save_every == 0 or stopped())
            rows = self.learner.update(self.step)
            self.step = done
            if to_log or to_measure or to_save:
                self.machine.wait()  # so that what was queued counts as training
            self.spent(time.perf_counter() - started)
            if to_log:
                self.note(rows)
            if to_measure:
                self.measure()
            if to_save:
                self.save()  # after the rows of this step: what is resumed has them all
            if to_save and stopped():
                raise Stopped(stopped())
        self.each(self.end)

    def spent(self, seconds: float) -> None:
        for book in self.books.values():
            book.seconds += seconds / len(self.books)

    def note(self, rows: list[dict]) -> None:
        step = self.step
        self.each(lambda i, book: book.note(step, {**rows[i], "tokens_per_s": book.tokens_per_s(step)}))

    def save(self) -> None:
        self.each(lambda i, book: book.save(self.step, self.learner.state(i)))

    def measure(self) -> None:
        nats = self.learner.dev_nats()
        self.each(lambda i, book: book.measured(self.step, nats[i]))

    def each(self, act: Callable[[int, Book], None]) -> None:
        """Act for each run that has not ended. One that diverges ends here; the others go on."""
        for i, book in list(self.books.items()):
            try:
                act(i, book)
            except Diverged as error:
                self.end(i, book, "diverged", str(error))

    def end(self, i: int, book: Book, outcome: str = "finished", reason: str = "") -> None:
        book.close(self.step, self.learner.weights(i), outcome, reason)
        del self.books[i]
