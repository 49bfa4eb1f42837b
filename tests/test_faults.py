"""Sweeps through kills, full disks, damage, too little memory and a lost device, by the real command."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from analysis.guard import COMMIT
from config import UserError
from conftest import DEFAULTS, ROOT, places, write_text
from engine.job import FAILED
from storage import frozen, rundir
from storage.runlog import RunLog
from test_runlog import HERE, SUMMARY, a_config, interrupted, steps, weights
from test_sweep import running
from test_train import wait_for

GRID = ("-m", "swap=baseline,gelu", "seed=0,1", "name=grid")
JOBS = [f"{swap}/seed{seed}" for swap in ("baseline", "gelu") for seed in (0, 1)]
SAVE = 10  # steps between resume points
KILLS = int(os.environ.get("KILLS", "6"))
LONG = (f"train.steps={20 * KILLS}", "train.checkpoints=[40]", f"train.save_every={SAVE}", "hydra.launcher.jobs=2")
KEY = "5ec2e7" * 7
CLOCK = ("train_s", "tokens_per_s", "peak_mb")  # of a summary: what no two sittings share


class Sweep:
    """A sweep in a folder of its own, started as a person starts it."""

    def __init__(self, root: Path, text: Path, *overrides: str, **variables: str):
        self.root, self.text, self.overrides = root, text, overrides or (*GRID, *LONG)
        self.env = {**DEFAULTS["env"], **variables}
        self.home = root / "runs/smoke" / f"grid-{text.stem}"
        root.mkdir(exist_ok=True)

    def start(self, *more: str, **options) -> subprocess.Popen:
        rest = [*self.overrides, *more]
        flags = [word for word in rest if word.startswith("-")]
        line = [sys.executable, str(ROOT / "train.py"), *flags, *places(self.root, self.text)]
        line += [word for word in rest if word not in flags]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(line, cwd=self.root, env=self.env, **pipes, **options)

    def run(self, *more: str, **options) -> tuple[int, str]:
        """Exit status, and all that was said."""
        process = self.start(*more, **options)
        said, _ = process.communicate(timeout=200)
        return process.returncode, said

    def folders(self) -> list[Path]:
        return [self.home / name for name in JOBS]

    def steps(self) -> dict[Path, int]:
        """The last step that each run has written."""
        found = {folder: rundir.read_rows(folder) for folder in self.folders()}
        return {folder: rows[-1]["step"] for folder, rows in found.items() if rows}

    def tables(self) -> dict[str, object]:
        """All that a report holds but clocks, speeds and memory."""
        place = self.root / "results/smoke" / self.home.name
        found = {name: (place / name).read_bytes() for name in ("curves.svg", "forest.svg", "steps.svg")}
        found["table.md"] = (place / "table.md").read_text().partition("#### What it cost")[0]
        records = [json.loads(line) for line in (place / "records.jsonl").read_text().splitlines()]
        for record in records:
            record["config"].pop("text.path")
            for key in CLOCK:
                record["summary"].pop(key, None)
            for key in COMMIT:  # somebody may be at work on the code
                record["provenance"].pop(key)
        return found | {"records": records}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Sweep:
    root = tmp_path_factory.mktemp("undisturbed")
    sweep = Sweep(root, write_text(root / "words.txt"), *GRID, *LONG, "wandb.mode=offline", WANDB_API_KEY=KEY)
    code, said = sweep.run()
    assert code == 0 and KEY not in said, said
    return sweep


def files(folder: Path) -> dict[str, tuple]:
    """The files of a run but for its log, with their times."""
    paths = [path for path in folder.iterdir() if path.name != "log.txt"]
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def kept(folder: Path) -> dict[str, tuple]:
    """What nobody may touch: the files of a run that has ended."""
    return files(folder) if rundir.has_ended(folder) else {}


def resume_point(folder: Path) -> int:
    return max([0, *(int(path.stem.removeprefix("checkpoint-")) for path in folder.glob("checkpoint-*.pt"))])


def strike(sweep: Sweep, draw: random.Random) -> None:
    """Start the sweep, kill something in it at a random moment, wait until all its processes are gone."""
    driver, what = sweep.start(), draw.choice(["job", "job, then driver", "driver", "all"])
    goal, patience = sum(sweep.steps().values()) + draw.randrange(40), draw.choice([draw.uniform(0, 5), 60, 60])
    deadline = time.monotonic() + patience
    while driver.poll() is None and time.monotonic() < deadline and sum(sweep.steps().values()) <= goal:
        time.sleep(0.01)
    jobs = running(sweep.home)
    one = draw.sample(jobs, min(1, len(jobs)))
    for pid in {"driver": [driver.pid], "all": [driver.pid, *jobs]}.get(what, one):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if what == "job, then driver":
        time.sleep(draw.uniform(0, 1))
        driver.kill()
    said, _ = driver.communicate(timeout=200)
    wait_for(lambda: not running(sweep.home))
    assert "Traceback" not in said, said
    if driver.returncode not in (0, -signal.SIGKILL):  # a job died: the end names it
        assert driver.returncode == FAILED and "killed by SIGKILL" in said, said


def test_killed_at_random_moments_a_sweep_ends_as_if_undisturbed(tmp_path, undisturbed):
    """KILLS=30 for a long night. Nothing finished is touched; no step older than the last interval is lost."""
    sweep, draw = Sweep(tmp_path / "killed", undisturbed.text), random.Random(1)
    for _ in range(KILLS):
        ended = {folder: kept(folder) for folder in sweep.folders() if folder.is_dir()}
        strike(sweep, draw)
        for folder, before in ended.items():
            assert not before or kept(folder) == before
        for folder, step in sweep.steps().items():
            assert rundir.has_ended(folder) or resume_point(folder) >= step - SAVE
    code, said = sweep.run()
    assert code == 0, said
    assert sweep.tables() == undisturbed.tables()


def test_two_drivers_on_one_sweep_train_each_run_once(tmp_path, undisturbed):
    sweep = Sweep(tmp_path / "two", undisturbed.text)
    drivers = [sweep.start() for _ in range(2)]
    for driver in drivers:
        said, _ = driver.communicate(timeout=200)
        assert "Traceback" not in said
        assert driver.returncode == 0 or (driver.returncode == FAILED and "not finished: " in said), said
    assert sweep.tables() == undisturbed.tables()  # the last to end has seen all of them finished


# --- disks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    """disk(bytes) -> a small file system of its own; with "ro" one that cannot be written."""
    mounted = []

    def make(options: str) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield make
    for place in mounted:
        subprocess.run(["umount", "-l", place], check=True)


def fill(place: Path) -> Path:
    """A file that takes all the room of a file system."""
    with open(place / "ballast", "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return place / "ballast"


def test_a_full_disk_fails_by_name_and_goes_on_when_there_is_room(disk, undisturbed):
    place = disk("size=40m")
    sweep = Sweep(place / "s", undisturbed.text)
    driver = sweep.start()
    wait_for(lambda: len(list(sweep.home.rglob("checkpoint-*.pt"))) >= 2)
    points, ballast = {folder: resume_point(folder) for folder in sweep.folders()}, fill(place)
    said, _ = driver.communicate(timeout=200)
    assert "Traceback" not in said and driver.returncode in (FAILED, 2), said
    told = said + "".join(path.read_text() for path in sweep.home.rglob("log.txt"))
    assert "No space left on device" in told, told
    assert all(rundir.has_ended(folder) or resume_point(folder) >= points[folder] for folder in sweep.folders())
    ballast.unlink()
    code, said = sweep.run()
    assert code == 0, said
    assert sweep.tables() == undisturbed.tables()


@pytest.mark.parametrize("what", ["checkpoint", "metrics", "summary"])
def test_whatever_meets_a_full_disk_what_was_written_stands(what, disk, capsys):
    place = disk("size=1m")
    folder = place / "run"
    interrupted(folder)
    with RunLog(folder, a_config()) as log:
        log.begin(HERE)
        before, ballast = (folder / "checkpoint-30.pt").read_bytes(), fill(place)
        if what == "checkpoint":
            assert log.save(35, weights(35)) is False
            assert "not saved: No space left on device" in capsys.readouterr().err
        elif what == "summary":
            with pytest.raises(UserError, match="No space left on device"):
                log.finish(SUMMARY, weights(40))
        else:
            with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be written: No space left on device"):
                for step in range(35, 9999):
                    log.log({"step": step, "loss": 1.0})
    assert (folder / "checkpoint-30.pt").read_bytes() == before and not list(folder.glob(".*.tmp"))
    ballast.unlink()
    with RunLog(folder, a_config()) as log:
        log.begin(HERE)
        assert log.restore()[0] == 30 and steps(folder, "loss")[-1] == 30


def report(sweep: Sweep, results: Path) -> subprocess.CompletedProcess:
    """What `make results` runs."""
    places = ["--runs", sweep.root / "runs", "--results", results, "--readme", sweep.root / "README.md"]
    return subprocess.run([sys.executable, "-m", "analysis.report", *places], **{**DEFAULTS, "cwd": ROOT})


def test_tables_that_do_not_fit_are_one_line_and_nothing_half(disk, undisturbed):
    results = disk("size=40k")
    done = report(undisturbed, results)
    assert done.returncode == 2 and "cannot be written: No space left on device" in done.stderr, done.stdout
    assert "Traceback" not in done.stderr and not list(results.rglob(".*.tmp"))


def test_results_that_cannot_be_written_stop_the_sweep_before_its_first_job(disk, tmp_path, undisturbed):
    results = disk("ro")
    sweep = Sweep(tmp_path / "ro", undisturbed.text, *GRID, *LONG, f"results_dir={results}")
    code, said = sweep.run()
    assert code == 2 and len(said.splitlines()) == 3 and "Read-only file system" in said, said
    assert not list(sweep.root.rglob("config.yaml"))


# --- inside a job ----------------------------------------------------------------------------------------------------

# Python runs this at its start, before any of ours; it alters what one job's device gives back.
SABOTAGE = """
import os, sys, time
if "engine.job" in sys.orig_argv:
    from training.learner import Learner
    plain, clock, run = Learner.update, time.time, "/".join(sys.orig_argv[-1].split(os.sep)[-2:])

    def update(self, step):
        rows = plain(self, step)
        if step == 25 and run == "baseline/seed1":
            rows[0]["loss"] = rows[0]["loss"] * float("nan")
        if step == 25 and run == "gelu/seed0" and "GONE" in os.environ:
            raise RuntimeError("CUDA error: the device is gone")
        if step == 25 and run == "gelu/seed1":
            time.time = lambda: clock() - 3600
        return rows

    Learner.update = update
"""


def test_a_lost_number_a_lost_device_and_a_clock_set_back_cost_their_own_run_at_most(tmp_path, undisturbed):
    """The loss of baseline/seed1 is NaN at step 26, gelu/seed0 loses its GPU, gelu/seed1 sees an hour come twice."""
    (tmp_path / "sitecustomize.py").write_text(SABOTAGE)
    sweep = Sweep(tmp_path / "s", undisturbed.text, PYTHONPATH=str(tmp_path), GONE="yes")
    code, said = sweep.run()
    assert code == FAILED and "gelu/seed0: FAILED: RuntimeError: CUDA error: the device is gone" in said, said
    assert "not finished: baseline/seed1 diverged: loss is not finite at step 26" in said
    assert resume_point(sweep.home / "gelu/seed0") == 20
    ended = {folder: kept(folder) for folder in sweep.folders()}
    del sweep.env["GONE"]
    code, said = sweep.run()
    assert code == FAILED and "3 done before, 1 to train" in said and "not finished: baseline/seed1 diverged" in said
    mine, whole = ({(r["swap"], r["seed"]): r for r in s.tables()["records"]} for s in (sweep, undisturbed))
    assert [key for key in whole if mine[key] != whole[key]] == [("baseline", 1)]
    assert all(kept(folder) == before for folder, before in ended.items() if before)


def test_out_of_memory_is_a_failure_with_a_name_and_the_others_go_on(tmp_path, undisturbed):
    def limited():
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))

    overrides = ("-m", "swap=baseline", "seed=0", "model.d_model=48,30000", "train.steps=3", "name=grid")
    sweep = Sweep(tmp_path / "s", undisturbed.text, *overrides)
    code, said = sweep.run(preexec_fn=limited)
    assert code == FAILED and "baseline,model.d_model=48/seed0: " in said, said
    (line,) = [line for line in said.splitlines() if line.startswith("not finished: ")]
    assert line.startswith("not finished: baseline,model.d_model=30000/seed0 failed: ") and "memory" in line


def test_a_text_that_changes_between_two_jobs_fails_the_second_by_name(tmp_path):
    text = write_text(tmp_path / "words.txt")
    sweep = Sweep(tmp_path / "s", text, *GRID, "swap=baseline", "train.steps=60", "hydra.launcher.jobs=1")
    driver = sweep.start()
    wait_for(lambda: (sweep.home / "baseline/seed0/metrics.jsonl").exists())
    text.write_text(text.read_text().replace("a", "b"))
    said, _ = driver.communicate(timeout=200)
    assert driver.returncode == FAILED and "baseline/seed0: " in said, said
    assert "baseline/seed1: FAILED: text words: not the text that this run was frozen with" in said


# --- damage, strangers, secrets ---------------------------------------------------------------------------------------


def copied(undisturbed: Sweep, root: Path) -> Sweep:
    shutil.copytree(undisturbed.root, root)
    return Sweep(root, undisturbed.text)


def test_damage_to_finished_runs_is_named_and_none_of_them_is_trained_again(tmp_path, undisturbed):
    sweep = copied(undisturbed, tmp_path / "hurt")
    shutil.rmtree(sweep.root / "results")
    first, second, third, fourth = sweep.folders()
    config = (second / "config.yaml").read_bytes()
    (first / "summary.json").write_bytes((first / "summary.json").read_bytes()[:100])
    (second / "config.yaml").write_bytes((first / "config.yaml").read_bytes())
    (third / "metrics.jsonl").write_bytes((third / "metrics.jsonl").read_bytes().replace(b"4", b"5", 1))
    (fourth / "model.pt").write_bytes(b"")
    done = report(sweep, sweep.root / "results")
    assert done.returncode == FAILED, done.stderr
    for name, file in zip(JOBS, ("summary.json", "config.yaml", "metrics.jsonl", "model.pt"), strict=True):
        assert f"not finished: {name} damaged: {file} is damaged" in done.stdout
    code, said = sweep.run()
    assert code == 2 and "holds another configuration: seed 0 -> 1" in said, said
    (second / "config.yaml").write_bytes(config)
    before = [files(folder) for folder in sweep.folders()]
    code, said = sweep.run()
    assert code == FAILED and "1 done before, 3 to train" in said, said
    assert all(f"not finished: {name} damaged: " in said for name in (JOBS[0], *JOBS[2:]))
    assert [files(folder) for folder in sweep.folders()] == before


class Bomb:
    """Written as a pickle, it is a command that loading would run."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_files_from_elsewhere_run_no_code_and_read_no_secret(tmp_path, undisturbed, monkeypatch, capsys):
    mark, folder = tmp_path / "ran", copied(undisturbed, tmp_path / "mine").folders()[0]
    torch.save({"step": 10, "state": Bomb(mark)}, folder / "checkpoint-10.pt")
    (folder / "summary.json").unlink()
    config = rundir.load(folder / "config.yaml")
    with RunLog(folder, config) as log:
        log.begin({})
        assert log.restore() is None
    assert "checkpoint-10.pt: not used, damaged" in capsys.readouterr().err
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(f"name: !!python/object/apply:os.mkdir ['{mark}']\n")
    with pytest.raises(UserError, match=r"config\.yaml is damaged"):
        frozen.thaw(folder)
    monkeypatch.setenv("WANDB_API_KEY", "s3cret")
    (folder / "config.yaml").write_text(text.replace("name: grid", "name: ${oc.env:WANDB_API_KEY}"))
    with pytest.raises(UserError, match="name: holds") as caught:
        frozen.thaw(folder)
    assert "s3cret" not in str(caught.value) and not mark.exists()


def test_a_key_in_the_environment_reaches_no_file(undisturbed):
    files = [path for path in undisturbed.root.rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix == ".wandb"]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
