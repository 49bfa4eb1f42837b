"""Being asked to stop: SIGINT (Ctrl-C), SIGTERM and SIGUSR2 wait until the step is done."""

import os
import signal
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)  # the last: submitit's word that the time is nearly up


class Stopped(KeyboardInterrupt):
    """The run was asked to stop and has saved a resume point."""

    def __init__(self, signum: int):
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


@contextmanager
def stop_signals():
    """SIGNALS, held until the step is done: yields a function that gives the signal's number or 0."""
    got = [0]

    def note(number, frame):
        got[0] = number
        os.write(2, b"stopping after this step\n")  # print is not safe in a handler

    before = {s: signal.signal(s, note) for s in SIGNALS}
    try:
        yield lambda: got[0]
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
