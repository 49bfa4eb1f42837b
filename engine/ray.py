"""The Ray engine: every task is an actor of Ray that watches a child process on some node of a cluster.

Ray kills its actors and their children with their driver; their runs go on later from their last resume points.
"""

import os
import signal
import socket
import subprocess
from pathlib import Path

from config import UserError
from engine.local import open_child
from engine.plan import Job
from engine.task import Task, changes, exit_words, python_path, require_count
from storage.files import first_line

try:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
except ImportError:
    ray = None

ANSWER_WITHIN = 5  # seconds for a cluster to take a connection; Ray itself would try for minutes


class Ray:
    """The arguments are the options of conf/hydra/launcher/ray.yaml."""

    look_every = 0.5

    def __init__(self, jobs: int | None, address: str | None, cpus: float | None, gpus: float):
        require_count(jobs, "jobs")
        if ray is None:
            raise UserError("hydra/launcher=ray needs ray: pip install '.[ray]'")
        self.jobs, self.address, self.cpus, self.gpus = jobs, address, cpus, gpus

    def connect(self) -> None:
        """Raises UserError: no cluster at the address."""
        if ray.is_initialized():
            return
        try:
            host, _, port = (self.address or "").rpartition(":")
            if host and port.isdecimal():
                socket.create_connection((host, int(port)), ANSWER_WITHIN).close()
            ray.init(
                address=self.address or "local",
                include_dashboard=None if self.address else False,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": {"PYTHONPATH": python_path()}},
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"hydra.launcher.address={self.address}: no cluster of Ray: {first_line(error)}") from None

    def share(self, job: Job) -> dict[str, float]:
        """What a task asks of the cluster."""
        return {"CPU": self.cpus or job.config.machine.threads, "GPU": self.gpus}

    def side_by_side(self, job: Job) -> int:
        """As many as fit on the cluster as it is now. Raises UserError where not one does."""
        asked, has = self.share(job), ray.cluster_resources()
        fit = int(min(has.get(kind, 0) / part for kind, part in asked.items() if part))
        if not fit:
            words = (", ".join(f"{these.get(kind, 0):g} {kind}" for kind in asked) for these in (asked, has))
            raise UserError("hydra/launcher=ray: a job asks for {}; the cluster has {}".format(*words))
        return self.jobs or fit

    def room(self, job: Job, running: int) -> int:
        return self.side_by_side(job) - running

    def adopt(self, jobs: list[Job]) -> list[Task]:
        return []

    def start(self, packs: list[list[Job]]) -> list[Task]:
        return [Handed(jobs, self.share(jobs[0])) for jobs in packs]

    def stop(self, tasks: list[Task]) -> None:
        for task in tasks:
            task.stop()


class Handed(Task):
    """A task of Ray."""

    def __init__(self, jobs: list[Job], share: dict[str, float]):
        super().__init__(jobs)
        worker = ray.remote(Worker).options(num_cpus=share["CPU"], num_gpus=share["GPU"], max_concurrency=2)
        self.worker = worker.remote()
        self.there = self.worker.look.remote()  # answers as soon as the cluster has room
        folders = [str(job.folder.resolve()) for job in jobs]
        self.result = self.worker.train.remote(folders, changes(jobs[0]), os.getcwd())

    def stop(self) -> None:
        if ray.wait([self.there], timeout=0)[0]:
            self.worker.stop.remote()
        else:
            ray.kill(self.worker)

    def ended(self) -> str | None:
        if not ray.wait([self.result], timeout=0)[0]:
            return None
        try:
            words = exit_words(ray.get(self.result))
        except ray.exceptions.RayError as error:
            words = f"killed with its worker of Ray: {first_line(error)}"
        ray.kill(self.worker)  # its cores are free at once
        return words


class Worker:
    """What Ray runs on a node: a process for the runs in some folders. `stop` is answered while `train` waits."""

    def __init__(self):
        self.child: subprocess.Popen | None = None
        self.stopped = False

    def look(self) -> None:
        """Answers."""

    def train(self, folders: list[str], env: dict[str, str], cwd: str) -> int:
        if self.stopped:
            return 0
        self.child = open_child([Path(folder) for folder in folders], {**os.environ, **env}, cwd)
        return self.child.wait()

    def stop(self) -> None:
        self.stopped = True
        if self.child:
            self.child.send_signal(signal.SIGINT)
