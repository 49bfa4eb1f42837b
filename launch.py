"""The sweep engine: freeze every configuration, skip what is done, run the rest side by side, report.

python launch.py FOLDER     one job: trains the frozen configuration that lies in the folder
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

import cost
import machine
import runlog
from analysis import runs
from config import UserError, to_plain
from plan import Freezer, Job, require_distinct
from progress import Board
from stopping import Stopped, stop_signals

OK, FAILED, USER_ERROR, DIVERGED = 0, 1, 2, 3  # exit statuses; a signal gives 128 + its number


def sweep(composed: list, overrides: list, declared: dict, jobs: int | None = None, dry: bool = False) -> int:
    """Run a sweep to its end. Returns the exit status: 0 only where every planned run is finished."""
    freezer, axes = Freezer(), swept_keys(overrides, declared)
    plan = [freezer.freeze(config, axes, threads=1) for config in composed]
    require_distinct(plan)
    states = {job.name: runlog.state(job.folder, to_plain(job.config)) for job in plan}
    todo = [job for job in plan if states[job.name] != "finished"]
    print(f"{len(plan)} runs planned, {len(plan) - len(todo)} finished before, {len(todo)} to train", flush=True)
    width = jobs or side_by_side(plan[0])
    if dry:
        return list_jobs(plan, states, width)
    for job in plan:
        runlog.freeze(job.folder, to_plain(job.config))
    for home in {job.folder.parent.parent for job in plan}:
        runlog.write_plan(home, [job.name for job in plan if job.folder.parent.parent == home])
    outcomes = Pool(todo, width).run() if todo else {}
    return conclude(plan, outcomes)


def swept_keys(overrides: list[list[str]], declared: dict) -> list[str]:
    """Keys that a sweep varies besides swap and seed, and besides scale and text, which have folders of their own."""
    values: dict[str, set] = {}
    for job in overrides:
        for item in job:
            key, _, value = item.lstrip("+").partition("=")
            values.setdefault(key, set()).add(value)
    varied = [key for key, seen in values.items() if len(seen) > 1 or key in declared]
    return [key for key in varied if key not in ("swap", "seed", "scale", "text")]


def side_by_side(job: Job) -> int:
    """How many runs at once: one per GPU, else as many as the cores hold. Opens no device."""
    if job.config.machine.device in ("auto", "cuda") and torch.cuda.is_available():
        return torch.cuda.device_count()
    return max(1, machine.cores() // (job.config.machine.threads or 1))


class Pool:
    """Runs jobs as child processes, at most `width` at once. A job's failure is its own: the others go on."""

    def __init__(self, jobs: list[Job], width: int):
        self.waiting, self.width = list(jobs), width
        self.children: dict[int, Child] = {}  # slot -> child
        self.outcomes: dict[str, int] = {}  # job name -> exit status
        self.board = Board({job.name: job.config.train.steps for job in jobs})

    def run(self) -> dict[str, int]:
        """Exit status of each job that was started."""
        with self.board, stop_signals() as stopped:
            while self.children or (self.waiting and not stopped()):
                for slot in range(self.width):
                    if slot not in self.children and self.waiting and not stopped():
                        self.children[slot] = Child(self.waiting.pop(0), slot)
                for slot, child in list(self.children.items()):
                    if stopped():
                        child.ask_to_stop()
                    self.look_at(slot, child)
                time.sleep(0.2)
        if stopped():
            raise Stopped(stopped())
        return self.outcomes

    def look_at(self, slot: int, child: "Child") -> None:
        ended = child.process.poll()
        for row in child.tail.rows():
            self.board.row(child.job.name, row)
        if ended is not None:
            del self.children[slot]
            self.outcomes[child.job.name] = child.end(ended)
            self.board.done(child.job.name, describe(child.job))


class Child:
    """One job in a process of its own. It hears from the driver by a pipe that closes when the driver dies."""

    def __init__(self, job: Job, slot: int):
        self.job, self.asked = job, False
        self.tail = runlog.Tail(job.folder)
        env = {**os.environ, "OMP_NUM_THREADS": str(job.config.machine.threads)}
        if job.config.machine.device in ("auto", "cuda") and torch.cuda.is_available():
            env["CUDA_VISIBLE_DEVICES"] = visible_gpus()[slot % torch.cuda.device_count()]
        with open(job.folder / "log.txt", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(job.folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,  # Ctrl-C reaches the driver alone, which passes it on
            )

    def ask_to_stop(self) -> None:
        if not self.asked:
            self.asked = True
            self.process.send_signal(signal.SIGINT)

    def end(self, code: int) -> int:
        """Note an end that the job could not note itself, a kill. Returns the exit status."""
        self.process.stdin.close()
        if code < 0:
            runlog.note_end(self.job.folder, "failed", f"killed by {signal.Signals(-code).name}")
        return code


def visible_gpus() -> list[str]:
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(n) for n in range(torch.cuda.device_count())]


def describe(job: Job) -> str:
    """One line about a job that has ended: its number, or why there is none and where to look."""
    part = runlog.read(job.folder)
    if part["state"] == "finished":
        return f"{job.name}: {part['summary']['final_bpb']:.3f} bits per byte in {part['summary']['train_s']:.0f} s"
    return f"{job.name}: {part['state'].upper()}: {part['reason']} (see {job.folder / 'log.txt'})"


def conclude(plan: list[Job], outcomes: dict[str, int]) -> int:
    """Build tables and figures, print them, and name each run that is not finished."""
    import mirror
    from analysis import report

    complete = True
    first = plan[0].config
    for home in dict.fromkeys(job.folder.parent.parent for job in plan):
        built = report.build(Path(first.runs_dir), Path(first.results_dir), home.parent.name, home.name)
        print(built.text)
        complete &= built.complete
        mirror.report(to_plain(next(job.config for job in plan if job.folder.parent.parent == home)))
    left = [job for job in plan if runlog.read(job.folder)["state"] != "finished"]
    for job in left:
        print(describe(job))
    return OK if complete and not left else FAILED


def list_jobs(plan: list[Job], states: dict[str, str], width: int) -> int:
    """What a sweep would do."""
    for job in plan:
        print(f"  {states[job.name]:<9} {job.folder}")
    print(f"{width} side by side. {estimate([job for job in plan if states[job.name] != 'finished'], width)}")
    print("Nothing was started.")
    return OK


def estimate(todo: list[Job], width: int) -> str:
    """Time for the jobs, from the FLOPs they take and the speed of finished runs on the same kind of device."""
    if not todo:
        return "Nothing is left to train."
    device = "cuda" if torch.cuda.is_available() else "cpu"
    speeds = [
        record["summary"]["tokens_per_s"] * record["summary"]["flops_per_token"]
        for path in Path(todo[0].config.results_dir).glob("*/*/records.jsonl")
        for record in runs.load(path)
        if record["state"] == "finished" and record["provenance"].get("device") == device
    ]
    if not speeds:
        return "No estimate: no finished run to go by."
    flops = sum(tokens(job.config) * cost.require_match(job.config)[0].flops_per_token for job in todo)
    minutes = flops / max(speeds) / min(width, len(todo)) / 60
    return f"About {minutes:.0f} min, at the {max(speeds) / 1e9:.0f} GFLOP/s a run that results/ tell of."


def tokens(config) -> int:
    return config.train.steps * config.train.batch_size * config.model.context


def single(config) -> int:
    """One run in this process, as `python train.py` without a sweep starts it."""
    job = Freezer().freeze(config)
    runlog.freeze(job.folder, to_plain(job.config))
    print(f"{job.folder}: {job.config.about.label}, {job.config.train.steps} steps", flush=True)
    with Board({job.name: job.config.train.steps}) as board:
        code = attempt(job.config, job.folder, lambda row: board.row(job.name, row))
    print(describe(job))
    return code


def attempt(config, folder: Path, watch: Callable[[dict], None] = lambda row: None) -> int:
    """Train, and turn each way of ending into an exit status and at most one line."""
    from train import Diverged, run

    try:
        run(config, folder, watch)
    except UserError as error:
        runlog.note_end(folder, "failed", str(error))
        print(f"oneswap: {error}", file=sys.stderr)
        return USER_ERROR
    except Diverged:
        return DIVERGED
    except Stopped as error:
        return error.exit_code
    return OK


def end_with_driver() -> None:
    """Ask this process to stop when the driver's end of the pipe closes: no job outlives its sweep."""

    def wait():
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def main(folder: str) -> int:
    end_with_driver()
    return attempt(runlog.thaw(Path(folder)), Path(folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
