"""The Slurm engine: every task is one element of a job array, submitted at once through submitit.

A job outlives its driver. Its run folders name it ("slurm 12_3"), so that the next driver finds it again. Slurm's
SIGTERM (preemption, cancellation) and the signal before a time limit both save a resume point; then Slurm,
or submitit, puts the job back into the queue.
"""

import getpass
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path

from config import UserError
from engine.plan import Job
from engine.task import Task, changes, require_count
from storage import rundir
from storage.files import first_line
from storage.lock import TICKET

try:
    import submitit
except ImportError:
    submitit = None

SECONDS_TO_SAVE = 90  # before a time limit
GONE = "no longer known"
# States in which a job is over for good. Between two tries of a requeued job Slurm shows others.
OVER = (GONE, "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "REVOKED", "TIMEOUT")  # fmt: skip


class Slurm:
    """`options` are those of conf/hydra/launcher/slurm.yaml."""

    look_every = 2.0

    def __init__(self, jobs: int | None, requeues: int, setup: list[str], sbatch: dict | None, **options):
        require_count(jobs, "jobs")
        if submitit is None:
            raise UserError("hydra/launcher=slurm needs submitit: pip install '.[slurm]'")
        self.jobs, self.requeues, self.setup, self.options = jobs, requeues, setup, options
        self.more = sbatch or {}
        self.gpus = bool(options["gpus"]) or any(word in str(self.more.get("gres")) for word in ("gpu", "shard"))
        self.queue = Queue()

    def connect(self) -> None:
        if missing := [name for name in ("sbatch", "squeue", "scancel", "srun") if not shutil.which(name)]:
            raise UserError(f"hydra/launcher=slurm: no {missing[0]} here; start it on a login node of the cluster")

    def side_by_side(self, job: Job) -> int:
        return self.jobs or sys.maxsize

    def room(self, job: Job, running: int) -> int:
        return sys.maxsize  # all go into the queue; `jobs` limits the array

    def adopt(self, jobs: list[Job]) -> list[Task]:
        holding: dict[str, list[Job]] = {}
        for job in jobs:
            engine, _, number = rundir.status(job.folder).get("job", "").partition(" ")
            if engine == "slurm":
                holding.setdefault(number, []).append(job)
        states = self.queue.states() if holding else {}
        return [Submitted(mine, n, self.queue) for n, mine in holding.items() if states.get(n, GONE) not in OVER]

    def start(self, packs: list[list[Job]]) -> list[Task]:
        started = []
        most = largest_array()
        for i in range(0, len(packs), most):
            started += self.submit(packs[i : i + most])
        return started

    def submit(self, packs: list[list[Job]]) -> list[Task]:
        """One array. Raises UserError: Slurm refuses it."""
        first = packs[0][0]
        executor = submitit.SlurmExecutor(
            first.folder.parent.parent.resolve() / ".slurm", max_num_timeout=self.requeues
        )
        try:
            executor.update_parameters(**self.parameters(first))
            with redirect_stderr(io.StringIO()):  # the error itself says what sbatch said
                handed = executor.map_array(Work(), [[str(job.folder.resolve()) for job in pack] for pack in packs])
        except (submitit.core.utils.FailedJobError, subprocess.CalledProcessError, OSError) as error:
            lines = [line for line in str(error).splitlines() if "sbatch: error" in line] or [first_line(error)]
            raise UserError(f"Slurm refuses the jobs: {lines[0]}") from None
        tasks = [Submitted(pack, one.job_id, self.queue) for pack, one in zip(packs, handed, strict=True)]
        for task in tasks:
            for job in task.jobs:
                rundir.enqueue(job.folder, task.ticket, job.config.train.steps)
        return tasks

    def parameters(self, job: Job) -> dict:
        """What submitit tells sbatch."""
        o, exports = self.options, (f"export {key}={shlex.quote(value)}" for key, value in changes(job).items())
        known = {
            "job_name": f"oneswap-{job.config.run.sweep}",
            "partition": o["partition"],
            "account": o["account"],
            "time": o["minutes"],
            "cpus_per_task": o["cpus"] or job.config.machine.threads,
            "gpus_per_node": o["gpus"] or None,
            "mem": f"{o['mem_gb']}GB" if o["mem_gb"] else None,
            "array_parallelism": self.jobs or largest_array(),
            "signal_delay_s": SECONDS_TO_SAVE,
            "stderr_to_stdout": True,
            "setup": [*self.setup, *exports],
            "additional_parameters": {"requeue": True, **self.more},
        }
        return {key: value for key, value in known.items() if value is not None}

    def stop(self, tasks: list[Task]) -> None:
        if tasks:
            subprocess.run(["scancel", *(task.number for task in tasks)], check=False, capture_output=True)


class Submitted(Task):
    """An element of a job array."""

    def __init__(self, jobs: list[Job], number: str, queue: "Queue"):
        super().__init__(jobs)
        self.number, self.queue, self.ticket = number, queue, f"slurm {number}"
        self.over = 0  # looks in a row that found it over: between two tries it may seem so for a moment

    def ended(self) -> str | None:
        state = self.queue.states().get(self.number, GONE)
        if self.queue.fresh:
            self.over = self.over + 1 if state in OVER else 0
        if self.over < 2:
            return None
        self.again = state == "PREEMPTED" and not self.asked  # a cluster that does not requeue
        for job in self.jobs:
            rundir.forget_dead(job.folder, self.ticket)
        return f"job {self.number} of Slurm: {state}"


class Queue:
    """Slurm's list of this user's jobs, asked once for all tasks of a look."""

    def __init__(self):
        self.known: dict[str, str] = {}
        self.asked = -float("inf")
        self.fresh = False  # whether the last look found an answer

    def states(self) -> dict[str, str]:
        """Number of each job or element of an array -> its state. As it was, where Slurm does not answer."""
        if time.monotonic() - self.asked > Slurm.look_every / 2:
            self.asked = time.monotonic()
            command = ["squeue", "-h", "-r", "-t", "all", "-u", getpass.getuser(), "-o", "%i %T"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.fresh = done.returncode == 0
            if self.fresh:
                self.known = dict(line.split() for line in done.stdout.splitlines())
        return self.known


def largest_array() -> int:
    """Elements that this Slurm allows in one array."""
    done = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=False)
    found = [line.split("=")[1] for line in done.stdout.splitlines() if line.startswith("MaxArraySize")]
    return max(1, int(found[0]) - 1) if found else 1000


class Work(submitit.helpers.Checkpointable if submitit else object):
    """What Slurm starts on a node: trains the runs in some folders, or goes on with them in the next try."""

    def __call__(self, folders: list[str]) -> int:
        log = os.open(Path(folders[0], "log.txt"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ[TICKET] = f"slurm {submitit.JobEnvironment().job_id}"
        from engine import job

        code = job.train([Path(folder) for folder in folders])
        if code == 128 + signal.SIGUSR2:  # the time is nearly up, all is saved: submitit's own handler requeues
            os.kill(os.getpid(), signal.SIGUSR2)
        if code > 128:
            sys.exit(code)  # without a result, so that submitit starts it again where Slurm has requeued it
        return code
