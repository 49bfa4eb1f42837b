"""wandb as a mirror of the local files: no number is read back from it, and nothing in it can stop a run.

The client's files of a sweep lie together in <runs_dir>/<scale>/<sweep>/wandb, where `wandb leet` shows
its runs side by side. The client is imported only where it is used.
"""

import csv
import json
import os
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from storage import files, rundir
from storage.files import first_line, flatten, warn
from storage.rundir import identity

ANSWER_WITHIN = 2  # seconds for the server to answer at all
START_WITHIN = 10  # seconds for the server to take a run
LEAVE_AFTER = 60  # seconds that the end of a run may wait for uploads; `sync` repeats what was left
QUIET = {"silent": True, "console": "off", "symlink": False}
# Nothing of this machine is probed or sent: a start takes 0.01 s instead of 1 s.
QUIET |= {"host": "", "program": "train.py", "save_code": False, "disable_git": True, "x_save_requirements": False}
QUIET |= {"x_disable_meta": True, "x_disable_stats": True, "x_disable_machine_info": True}
PLACES = ("run.", "wandb.", "about.", "runs_dir", "results_dir", "name", "text.path")  # no part of the logged config


def resolve(mode: str) -> str:
    """One of online, offline and disabled. auto goes online where a key is found and the server answers.

    WANDB_MODE decides where the mode is auto. A forced "online" that cannot be is a warning line and "offline".
    """
    asked = os.environ.get("WANDB_MODE", "auto") if mode == "auto" else mode
    if asked not in ("auto", "online"):
        return "disabled" if asked == "disabled" else "offline"
    problem = unreachable()
    if problem and asked == "online":
        warn(f"wandb: {problem}; logging offline, `make wandb-sync` uploads later")
    return "offline" if problem else "online"


def unreachable() -> str:
    """Why runs cannot be logged online, in a few words; "" where they can."""
    try:
        _client()
        from wandb.sdk import wandb_setup
        from wandb.sdk.lib import wbauth

        url = wandb_setup.singleton().settings.base_url
        if not wbauth.authenticate_session(host=url, source="oneswap", prompt=False, update_session=False):
            return f"no key for {url}"
    except Exception as error:
        return first_line(error)
    return "" if _answers(url) else f"{url} does not answer within {ANSWER_WITHIN} s"


def _answers(url: str) -> bool:
    """Whether a web server answers. In a thread of its own: looking up a name knows no time limit."""
    answers = []

    def ask():
        try:
            urllib.request.urlopen(url, timeout=ANSWER_WITHIN).close()
            answers.append(True)
        except urllib.error.HTTPError:
            answers.append(True)
        except Exception:  # no such name, no route, no TLS, no HTTP: no server
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_WITHIN)
    return bool(answers)


def _client():
    """The wandb module. Told by the environment, before it starts, not to chat and not to report on itself.

    Its reports go to the server even of offline runs, and hold up the end of the process while none answers.
    """
    os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    import wandb

    return wandb


def described(folder: Path, config: dict) -> dict:
    """The flat configuration that a run is logged with: every knob, and what names the run, its text and its code."""
    run = config["run"]
    code = files.load(folder / "provenance.json")
    return {
        **{key: value for key, value in flatten(config).items() if not key.startswith(PLACES)},
        **{key: run[key] for key in ("scale", "sweep", "swap", "variant", "text_sha256", "vocab_size")},
        "seam": config["about"]["seam"],
        "label": config["about"]["label"],
        "commit": code.get("commit"),
        "code_sha256": code.get("code_sha256"),
    }


def _open(frozen: dict, mode: str, home: Path, patience: int = LEAVE_AFTER, **named):
    """Starts a wandb run with its files in `home`/wandb. Raises whatever the client raises."""
    wandb = _client()
    limits = {"init_timeout": START_WITHIN, "finish_timeout": patience, "finish_timeout_raises": True}
    settings = wandb.Settings(mode=mode, reinit="create_new", allow_val_change=True, **limits, **QUIET)
    home.mkdir(parents=True, exist_ok=True)
    for old in (home / "wandb").glob(f"*run-*-{named['id']}"):  # of an earlier attempt; the new run repeats its rows
        shutil.rmtree(old, ignore_errors=True)
    place = {"project": frozen["wandb"]["project"], "entity": frozen["wandb"]["entity"], "group": _group(frozen)}
    return wandb.init(**place, **named, dir=home, settings=settings)


def _finish(run, exit_code: int) -> None:
    """Raises OSError where the server refused data: the client tells that to its own log and no one else."""
    run.finish(exit_code)
    log = [] if run.offline else Path(run.settings.log_internal).read_text().splitlines()
    for line in log:
        if '"level":"ERROR+4"' in line:  # the client's word for fatal
            raise OSError(json.loads(line)["msg"])


def _group(config: dict) -> str:
    return f"{config['run']['scale']}/{config['run']['sweep']}"


class Copy:
    """A wandb run that repeats a run's folder, begun with the rows that are there. Raises what the client raises."""

    def __init__(self, folder: Path, config: dict, mode: str, home: Path, patience: int, resume: bool):
        self.run = _open(
            config,
            mode,
            home,
            patience,
            id=identity(config),
            name=f"{config['run']['variant']} s{config['seed']}",
            job_type=config["run"]["swap"],
            config=described(folder, config),
            resume="allow" if resume else None,
        )
        self.run.define_metric("step")
        self.run.define_metric("val_*", step_metric="step")
        for row in rundir.read_rows(folder):
            self.log(row)

    def log(self, row: dict) -> None:
        """Rows of one step become one. Those that the server had before the run resumed are passed over."""
        if row["step"] >= self.run.starting_step:
            values = {key: float("nan") if value is None else value for key, value in row.items()}
            self.run.log(values, step=row["step"])

    def end(self, summary: dict, exit_code: int) -> None:
        self.run.log({}, commit=True)  # the last row first, or its values would overwrite the summary's
        flat = {key: value for key, value in flatten(summary).items() if not isinstance(value, list)}
        self.run.summary.update(flat)
        self.run.config.update({key: value for key, value in flat.items() if key.startswith("params.")})
        _finish(self.run, exit_code)


class Mirror:
    """The wandb run of a run that trains. An exception of the client is one warning line; all is dark after it.

    Open it when metrics.jsonl has been cut back to the resume point. An offline run is then written anew, in the
    place of the killed attempt's; an online run goes on at the step that the server lacks.
    """

    def __init__(self, folder: Path, config: dict, mode: str):
        self._copy: Copy | None = None
        mode = resolve(mode)
        for attempt in dict.fromkeys((mode, "offline") if mode != "disabled" else ()):
            if not self._copy:
                self._guard(f"{attempt} run not started", self._start, Path(folder), config, attempt)

    def _start(self, folder: Path, config: dict, mode: str) -> None:
        resume = mode == "online" and bool(rundir.read_rows(folder))  # a first start replaces what bears its id
        self._copy = Copy(folder, config, mode, folder.parent.parent, LEAVE_AFTER, resume)
        if mode == "online":
            print(f"wandb: {self._copy.run.url}", flush=True)

    def log(self, row: dict) -> None:
        """A row as it went to metrics.jsonl."""
        if self._copy:
            self._guard("logs no further", self._copy.log, row)

    def finish(self, summary: dict, exit_code: int) -> None:
        """Closes the run; call it on every way out. `summary` is empty where the run has no result."""
        if self._copy:
            self._guard("not ended well", self._copy.end, summary, exit_code)
            self._copy = None

    def _guard(self, what: str, call: Callable, *arguments) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self._copy = None
            _give_up(f"{what}: {first_line(error)}")


def _give_up(problem: str) -> None:
    """One line, and the client's service ended, which would otherwise complain once more when the process exits."""
    warn(f"wandb: {problem}")
    end_client()


def end_client() -> None:
    with suppress(Exception):
        _client().teardown(exit_code=1)


def report(config: dict) -> None:
    """Logs tables (*.csv) and figures (*.png) in <results_dir>/<scale>/<sweep> as one more run of the group.

    `config` is that of any run of the sweep. An exception of the client is one warning line.
    """
    mode = resolve(config["wandb"]["mode"])
    if mode != "disabled":
        try:
            log_report(config, mode, Path(config["runs_dir"]) / _group(config), LEAVE_AFTER)
        except Exception as error:
            _give_up(f"report not logged: {first_line(error)}")


def log_report(config: dict, mode: str, home: Path, patience: int) -> str:
    wandb = _client()
    results = Path(config["results_dir"]) / _group(config)
    found = {path.stem: wandb.Image(str(path)) for path in sorted(results.glob("*.png"))}
    for path in sorted(results.glob("*.csv")):
        with open(path, newline="") as file:
            columns, *rows = csv.reader(file)
        found[path.stem] = wandb.Table(columns=columns, data=rows)
    if not found:
        return "no tables and figures"
    name = identity({"run": config["run"] | {"variant": "report of the sweep"}, "seed": 0})
    run = _open(config, mode, home, patience, id=name, name=f"report {_group(config)}", job_type="report")
    run.log(found)
    _finish(run, 0)
    return run.url
