"""What a person sees while runs train: bars on a terminal, plain lines elsewhere."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_EVERY = 30  # seconds between plain lines


class Board:
    """Progress of a list of runs. Use as a context manager; `say` prints a line above the bars."""

    def __init__(self, runs: dict[str, int]):
        """`runs`: name -> steps, of the runs that are to be trained."""
        self.console = Console(soft_wrap=True)
        self.live = self.console.is_terminal
        self.steps, self.at, self.speed = dict(runs), dict.fromkeys(runs, 0), {}
        self.started = self.told = time.monotonic()
        self.begun: dict[str, int] = {}  # name -> step at which this sitting met it
        self.bars = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.tasks = {}

    def __enter__(self):
        if self.live:
            self.bars.start()
            self.total = self.bars.add_task("all runs, steps", total=max(1, sum(self.steps.values())), note="")
        return self

    def __exit__(self, *error):
        if self.live:
            self.bars.stop()

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False)

    def row(self, name: str, row: dict) -> None:
        """A row of a run's metrics has been written."""
        self.begun.setdefault(name, row["step"])
        self.at[name] = row["step"]
        self.speed[name] = row.get("tokens_per_s", self.speed.get(name, 0.0))
        if self.live:
            self.draw(name)
        elif time.monotonic() - self.told > PLAIN_EVERY:
            self.told = time.monotonic()
            self.say(self.plain())

    def done(self, name: str, line: str) -> None:
        """A run has ended, well or not."""
        self.speed.pop(name, None)
        if self.live and name in self.tasks:
            self.bars.remove_task(self.tasks.pop(name))
        self.say(line)

    def draw(self, name: str) -> None:
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=self.steps[name], note="")
        note = f"{self.speed[name] / 1000:.1f}k tokens/s"
        self.bars.update(self.tasks[name], completed=self.at[name], note=note)
        note = f"{sum(self.speed.values()) / 1000:.1f}k tokens/s"
        self.bars.update(self.total, completed=sum(self.at.values()), note=note)

    def plain(self) -> str:
        done, all_steps = sum(self.at.values()), sum(self.steps.values())
        fresh = done - sum(self.begun.values())
        minutes = (all_steps - done) * (time.monotonic() - self.started) / fresh / 60 if fresh else None
        left = "no estimate yet" if minutes is None else f"about {max(1, round(minutes))} min left"
        running = ", ".join(f"{name} {self.at[name]}/{self.steps[name]}" for name in self.speed)
        return f"{done / all_steps:4.0%} of all steps, {left}; {running}"
