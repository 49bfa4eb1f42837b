"""One job: train frozen configurations, and turn each way of ending into an exit status and at most one line.

python -m engine.job FOLDER...     what a sweep starts: a process for each run, or for seeds that train as one model
"""

import os
import signal
import sys
import threading
from pathlib import Path

from config import UserError
from storage import frozen, rundir
from training.book import Diverged
from training.loop import Runs, together
from training.stopping import SIGNALS, Stopped

OK, FAILED, USER_ERROR, DIVERGED = 0, 1, 2, 3  # exit statuses; a signal gives 128 + its number


def attempt(runs: Runs) -> int:
    """Train each run in its folder. A fault of the program itself is raised."""
    try:
        together(runs)
    except UserError as error:
        for _, folder, _ in runs:
            rundir.note_end(folder, "failed", str(error))
        print(f"oneswap: {error}", file=sys.stderr)
        return USER_ERROR
    except Diverged:
        return DIVERGED
    except Stopped as error:
        return error.exit_code
    return OK


def train(folders: list[Path]) -> int:
    """Train the runs that are frozen in these folders. Returns the exit status."""
    return attempt([(frozen.thaw(folder), folder, lambda row: None) for folder in folders])


def end_with_driver() -> None:
    """Ask this process to stop when the driver's end of the pipe closes: no job outlives its sweep."""

    def wait():
        while os.read(0, 1):  # not sys.stdin: its lock, held by a daemon thread, aborts the interpreter at its end
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # a thread of Ray's that starts a process has blocked them
    end_with_driver()
    sys.exit(train([Path(folder) for folder in sys.argv[1:]]))
