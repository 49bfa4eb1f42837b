"""The driver of a sweep: hands jobs to an engine, follows their run folders, and notes how each ended."""

import math
import time
from pathlib import Path

from engine.local import visible_gpus
from engine.plan import Job
from engine.progress import Board
from engine.task import Engine, Task, Watched, noted
from storage import rundir
from storage.lock import holder
from training.packed import can_pack
from training.stopping import Stopped, stop_signals


class Pool:
    """Runs jobs to their end. A job's failure is its own: the others go on."""

    def __init__(self, jobs: list[Job], engine: Engine):
        self.engine, self.all = engine, jobs
        self.tasks: list[Task] = []
        self.tails: dict[str, rundir.Tail] = {}
        self.board = Board({job.name: job.config.train.steps for job in jobs})

    def run(self) -> None:
        """Returns when every job has ended, well or not. Raises Stopped after each has saved a resume point."""
        with self.board, stop_signals() as stopped:
            self.waiting = self.take_up()
            while self.tasks or (self.waiting and not stopped()):
                if stopped():
                    self.stop()
                elif self.waiting and (room := self.engine.room(self.waiting[0][0], len(self.tasks))) > 0:
                    self.follow(self.engine.start(self.waiting[:room]))
                    self.waiting = self.waiting[room:]
                for task in list(self.tasks):
                    self.look_at(task)
                time.sleep(self.engine.look_every)
        if stopped():
            raise Stopped(stopped())

    def take_up(self) -> list[list[Job]]:
        """Follows what an earlier driver has begun and that still runs. Returns the packs that are left to start."""
        self.follow(self.engine.adopt(self.all))
        taken = {job.name for task in self.tasks for job in task.jobs}
        left = [job for job in self.all if job.name not in taken]
        busy = [job for job in left if holder(job.folder)]
        self.follow([self.watched(job) for job in busy])
        return packs([job for job in left if job not in busy], self.engine)

    def follow(self, tasks: list[Task]) -> None:
        self.tasks += tasks
        self.tails |= {job.name: rundir.Tail(job.folder) for task in tasks for job in task.jobs}

    def watched(self, job: Job) -> Task:
        pid, host = holder(job.folder) or ("?", "?")
        self.board.say(f"{job.name}: run by pid {pid} on host {host} already; followed, not started again")
        return Watched(job)

    def stop(self) -> None:
        mine = [task for task in self.tasks if not task.asked]
        for task in mine:
            task.asked = True
        self.engine.stop([task for task in mine if not isinstance(task, Watched)])

    def look_at(self, task: Task) -> None:
        for job in task.jobs:
            for row in self.tails[job.name].rows():
                self.board.row(job.name, row)
        if (words := task.ended()) is not None:
            self.tasks.remove(task)
            for job in task.jobs:
                self.bury(task, job, words)

    def bury(self, task: Task, job: Job, words: str) -> None:
        """Note an end that a job could not note itself."""
        if rundir.has_ended(job.folder) or task.asked:
            pass
        elif holder(job.folder) and not isinstance(task, Watched):  # another driver was faster
            return self.follow([self.watched(job)])
        elif task.again:
            return self.waiting.append([job])
        if words and (words.startswith("killed") or not noted(job)):
            rundir.note_end(job.folder, "interrupted" if task.asked else "failed", words)
        self.board.done(job.name, describe(job, task.log))


def packs(jobs: list[Job], engine: Engine) -> list[list[Job]]:
    """The jobs of each task, in the order of the plan: one, or seeds of one variant that train as one model.

    On GPUs all seeds of a variant, unless that would leave one of the driver's GPUs without a task.
    """
    variants: dict[Path, list[Job]] = {}
    for job in jobs:
        variants.setdefault(job.folder.parent if can_pack(job.config) else job.folder, []).append(job)
    found = []
    for seeds in variants.values():
        gpus = len(visible_gpus(seeds[0]))
        most = math.ceil(len(jobs) / gpus) if gpus else len(seeds) if engine.gpus else 1
        size = seeds[0].config.machine.pack or most
        found += [seeds[i : i + size] for i in range(0, len(seeds), size)]
    return found


def describe(job: Job, log: Path | None = None) -> str:
    """One line about a job that has ended: its number, or why there is none and where its process wrote."""
    part = rundir.read(job.folder)
    if part["state"] == "finished":
        return f"{job.name}: {part['summary']['final_bpb']:.3f} bits per byte in {part['summary']['train_s']:.0f} s"
    if owner := holder(job.folder):
        return f"{job.name}: not ours: being run by pid {owner[0]} on host {owner[1]}"
    return f"{job.name}: {part['state'].upper()}: {part['reason']}" + (f" (see {log})" if log else "")
