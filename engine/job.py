"""One job: train a frozen configuration, and turn each way of ending into an exit status and at most one line.

python -m engine.job FOLDER     what a sweep starts, a process for each run
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from config import Config, UserError
from storage import rundir
from training.book import Diverged
from training.loop import run
from training.stopping import Stopped

OK, FAILED, USER_ERROR, DIVERGED = 0, 1, 2, 3  # exit statuses; a signal gives 128 + its number


def attempt(config: Config, folder: Path, watch: Callable[[dict], None] = lambda row: None) -> int:
    """Train in a folder. `watch` sees each row of metrics. A fault of the program itself is raised."""
    try:
        run(config, folder, watch)
    except UserError as error:
        rundir.note_end(folder, "failed", str(error))
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
        while os.read(0, 1):  # not sys.stdin: its lock, held by a daemon thread, aborts the interpreter at its end
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_driver()
    sys.exit(attempt(rundir.thaw(Path(sys.argv[1])), Path(sys.argv[1])))
