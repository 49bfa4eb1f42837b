"""A run's folder survives kills, damage, full disks, other processes and other people's files."""

import json
import os
import platform
import random
import resource
import signal  # noqa: F401 (for the code of child processes)
import string
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from config import Config, RunConfig, TrainConfig, UserError, to_plain
from storage import frozen, provenance, rundir, runlog
from storage.runlog import RunLog

HERE = {"device": "cpu", "threads": 1}  # provenance of these runs
SUMMARY = {"final_bpb": 2.5, "params": {"total": 3}}


def a_config(**changes) -> dict:
    run = RunConfig(scale="smoke", sweep="scratch", swap="gelu", variant="gelu,train.lr=0.001", text_sha256="ab")
    return to_plain(replace(Config(seed=3, run=run, train=TrainConfig(steps=40)), **changes))


def weights(step: int) -> dict:
    return {"weight": torch.full((40, 30), float(step)), "moments": {0: {"step": torch.tensor(step)}}, "lr": [1e-3]}


def train(log: RunLog, until: int, first: int = 0) -> None:
    """Rows every 5 steps, evaluations and checkpoints every 10, as a run would leave them."""
    for step in range(first, until + 1, 5):
        if step:
            log.log({"step": step, "loss": 1 / step})
        if step % 10 == 0:
            log.log({"step": step, "val_bpb": 8 / (step + 1)})
            log.save(step, weights(step))


def interrupted(folder: Path, until: int = 35) -> None:
    with RunLog(folder, a_config()) as log:
        log.begin(HERE)
        train(log, until)
        log.status("interrupted", step=until)


def finished(folder: Path) -> None:
    with RunLog(folder, a_config()) as log:
        log.begin(HERE)
        train(log, 40)
        log.finish(SUMMARY, weights(40))


def steps(folder: Path, key: str) -> list[int]:
    return [row["step"] for row in rundir.read_rows(folder) if key in row]


def snapshot(folder: Path) -> dict:
    """Every path below a folder, the folder included, with its time and content."""
    paths = [folder, *folder.rglob("*")]
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None) for path in paths}


def python(code: str, folder: Path) -> subprocess.Popen:
    """A process of its own that runs `code` on a folder beside this test."""
    head = "import sys; sys.path[:0] = ['tests', '.']; from test_runlog import *\n"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", head + code, str(folder)]
    return subprocess.Popen(command, cwd=provenance.ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


HOLD = """
with RunLog(sys.argv[1], a_config()) as log:
    log.begin(HERE)
    train(log, 25)
    print("ready", flush=True)
    signal.pause()
"""


@contextmanager
def small_disk(free: int):
    """No file may grow beyond `free` bytes: what a full disk does to a writer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_whole_run_leaves_its_files_and_no_others(tmp_path):
    finished(tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    expected = {"config.yaml", "provenance.json", "metrics.jsonl", "status.json", "summary.json", "model.pt"}
    assert names == expected | {"seal.json"}
    found = rundir.read(tmp_path / "run")
    assert (found["state"], found["step"], found["summary"]) == ("finished", 40, SUMMARY)
    assert torch.load(tmp_path / "run/model.pt", weights_only=True)["weight"].eq(40).all()
    assert frozen.state(tmp_path / "run", a_config()) == "finished"


def test_a_finished_folder_is_never_written_again(tmp_path):
    finished(tmp_path)
    before = snapshot(tmp_path)
    with RunLog(tmp_path, a_config()) as log:
        assert (log.state, log.summary) == ("finished", SUMMARY)
        with pytest.raises(UserError, match="this run has finished"):
            log.begin(HERE)
        log.status("running")
    frozen.freeze(tmp_path, a_config() | {"results_dir": "elsewhere"})
    rundir.note_end(tmp_path, "failed", "no")
    assert snapshot(tmp_path) == before


def test_an_exception_after_the_end_does_not_undo_it(tmp_path):
    with pytest.raises(ZeroDivisionError), RunLog(tmp_path, a_config()) as log:
        log.begin(HERE)
        train(log, 40)
        log.finish(SUMMARY, weights(40), "diverged", "loss is not finite")
        raise ZeroDivisionError
    found = rundir.read(tmp_path)
    assert (found["state"], found["reason"]) == ("diverged", "loss is not finite")


def test_resume_goes_on_from_the_newest_checkpoint_and_no_step_comes_twice(tmp_path):
    interrupted(tmp_path)
    with RunLog(tmp_path, a_config()) as log:
        assert log.state == "interrupted"
        log.begin(HERE)
        step, state = log.restore()
        assert step == 30 and state["weight"].eq(30).all() and state["lr"] == [1e-3]
        assert steps(tmp_path, "loss")[-1] == steps(tmp_path, "val_bpb")[-1] == 30
        with pytest.raises(ValueError, match="loss of step 30 after that of step 30"):
            log.log({"step": 30, "loss": 1.0})
        train(log, 40, first=35)
    assert steps(tmp_path, "loss") == [5, 10, 15, 20, 25, 30, 35, 40]
    assert steps(tmp_path, "val_bpb") == [0, 10, 20, 30, 40]
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["checkpoint-30.pt", "checkpoint-40.pt"]


def test_killed_is_seen_and_the_stale_lock_taken_over(tmp_path):
    process = python(HOLD, tmp_path)
    assert process.stdout.readline() == "ready\n"
    assert rundir.read(tmp_path)["state"] == "running"
    with pytest.raises(UserError, match=rf"already being run by pid {process.pid} on host ") as caught:
        RunLog(tmp_path, a_config()).__enter__()
    assert "\n" not in str(caught.value)
    rundir.note_end(tmp_path, "failed", "not mine to say")
    assert rundir.read(tmp_path)["state"] == "running"
    process.kill()
    process.communicate()
    found = rundir.read(tmp_path)
    assert (found["state"], found["reason"]) == ("interrupted", "killed")
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 30, "lo')  # the kill tore a line
    with RunLog(tmp_path, a_config()) as log:
        assert (log.state, log.reason) == ("interrupted", "killed")
        log.begin(HERE)
        assert log.restore()[0] == 20
    assert steps(tmp_path, "loss") == [5, 10, 15, 20]
    assert not (tmp_path / ".lock").exists()


RACE = """
print("ready", flush=True)
sys.stdin.readline()
with RunLog(sys.argv[1], a_config()):
    print("mine", flush=True)
    sys.stdin.readline()
"""


def test_only_one_of_three_gets_the_folder(tmp_path):
    racers = [python(RACE, tmp_path / "run") for _ in range(3)]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = [racer.stdout.readline() for racer in racers]  # "" where the race was lost
    errors = [racer.communicate("done\n")[1] for racer in racers]
    assert sorted(said) == ["", "", "mine\n"]
    assert sum("UserError" in error and "already being run by" in error for error in errors) == 2


def test_a_lock_of_another_host_is_named_and_not_broken(tmp_path):
    interrupted(tmp_path)
    lock = tmp_path / ".lock"
    lock.write_text("filelock/2\nmode=exclusive\npid=77\nhost=elsewhere\n")
    with pytest.raises(UserError, match=r"by pid 77 on host elsewhere; if that is not so, remove .*\.lock"):
        RunLog(tmp_path, a_config()).__enter__()
    assert lock.exists() and rundir.holder(tmp_path) == (77, "elsewhere")


@pytest.mark.parametrize("end", [finished, interrupted])
def test_another_configuration_is_refused_key_by_key(tmp_path, end):
    end(tmp_path)
    other = a_config(train=TrainConfig(steps=40, lr=0.5, save_every=7), seed=4)
    del other["model"]["rope_base"]
    before = snapshot(tmp_path)
    for refuse in (frozen.freeze, frozen.state, lambda *given: RunLog(*given).__enter__()):
        with pytest.raises(UserError) as caught:
            refuse(tmp_path, other)
        line = str(caught.value)
        for part in ("train.lr 0.001 -> 0.5", "seed 3 -> 4", "model.rope_base 10000.0 -> absent", "name=..."):
            assert part in line
        assert "save_every" not in line and "\n" not in line
    assert {k: v[1] for k, v in snapshot(tmp_path).items()} == {k: v[1] for k, v in before.items()}


def test_free_keys_may_change_until_the_end(tmp_path):
    interrupted(tmp_path)
    freer = a_config(train=TrainConfig(steps=40, log_every=1)) | {"name": "other"}
    freer["wandb"]["mode"] = "disabled"
    frozen.freeze(tmp_path, freer)
    assert to_plain(frozen.thaw(tmp_path)) == freer


@pytest.mark.parametrize("value", ["no", "on", "12e34", "1e-3", "null", "NA", "2024-01-01", "~", "1_000", "é: #x"])
def test_names_survive_every_yaml_reader(tmp_path, value):
    config = a_config() | {"name": value}
    config["run"]["axes"] = {"train.lr": 1e-5, "model.norm": value}
    frozen.freeze(tmp_path, config)
    frozen.freeze(tmp_path, config)
    text = (tmp_path / "config.yaml").read_text()
    assert (
        yaml.safe_load(text) == OmegaConf.to_container(OmegaConf.create(text)) == rundir.load(tmp_path / "config.yaml")
    )
    assert to_plain(frozen.thaw(tmp_path)) == config


def test_any_damaged_bit_is_noticed_or_harmless(tmp_path):
    with RunLog(tmp_path, a_config()) as log:
        log.begin(HERE)
        log.save(20, weights(20))
    path, whole = tmp_path / "checkpoint-20.pt", (tmp_path / "checkpoint-20.pt").read_bytes()
    draw, noticed = random.Random(0), 0
    for place in [*range(0, len(whole), 13), *(draw.randrange(len(whole)) for _ in range(100))]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            state = runlog._load_checkpoint(path)["state"]
        except Exception:
            noticed += 1
        else:
            assert torch.equal(state["weight"], weights(20)["weight"]) and state["lr"] == [1e-3]
    assert noticed > 300  # the weights alone are most of the file


@pytest.mark.parametrize("damage", ["cut", "bit", "empty"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, damage, capsys):
    interrupted(tmp_path)
    newest = tmp_path / "checkpoint-30.pt"
    whole = newest.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 4
    newest.write_bytes({"cut": whole[:-100], "bit": bytes(flipped), "empty": b""}[damage])
    with RunLog(tmp_path, a_config()) as log:
        log.begin(HERE)
        assert log.restore()[0] == 20
        log.save(25, weights(25))  # between the two: must not be pruned for the damaged file's sake
    assert [line for line in capsys.readouterr().err.splitlines() if "checkpoint-30.pt: not used, damaged" in line]
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["checkpoint-20.pt", "checkpoint-25.pt"]
    assert steps(tmp_path, "loss")[-1] == 20


def test_without_a_sound_checkpoint_the_run_starts_over_and_says_so(tmp_path, capsys):
    interrupted(tmp_path)
    for path in tmp_path.glob("checkpoint-*.pt"):
        path.write_bytes(b"x" * 10)
    with RunLog(tmp_path, a_config()) as log:
        log.begin(HERE | {"threads": 2})
        assert log.restore() is None
        train(log, 10)
    assert "starts over from step 0" in capsys.readouterr().err.splitlines()[-1]
    assert steps(tmp_path, "val_bpb") == [0, 10]
    assert rundir.load(tmp_path / "provenance.json")["threads"] == 2


@pytest.mark.parametrize("damage", [lambda lines: lines[3:], lambda lines: [*lines[:2], "{\n", *lines[2:]]])
def test_a_checkpoint_whose_rows_are_gone_is_not_used(tmp_path, capsys, damage):
    interrupted(tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(damage(lines)))
    with RunLog(tmp_path, a_config()) as log:
        log.begin(HERE)
        assert log.restore() is None
    said = capsys.readouterr().err.splitlines()
    assert "has lost rows" in said[-2] and "starts over from step 0" in said[-1]


def test_a_disk_that_fills_up_costs_nothing_that_was_written(tmp_path, capsys):
    with RunLog(tmp_path, a_config()) as log:
        log.begin(HERE)
        train(log, 20)
        before = (tmp_path / "checkpoint-20.pt").read_bytes()
        with small_disk(1000):
            assert log.save(20, weights(21)) is False and log.save(25, weights(25)) is False
            with pytest.raises(UserError, match="cannot be written"):
                log.finish(SUMMARY, weights(40))
        with small_disk(5), pytest.raises(UserError, match=r"metrics\.jsonl: cannot be written"):
            log.log({"step": 21, "loss": 0.5})
        assert log.save(30, weights(30)) is True
    assert "the checkpoint before it stands" in capsys.readouterr().err
    assert (tmp_path / "checkpoint-20.pt").read_bytes() == before
    assert not list(tmp_path.glob(".*.tmp")) and not (tmp_path / "summary.json").exists()


def test_a_torn_row_is_dropped_with_what_followed_the_checkpoint(tmp_path):
    interrupted(tmp_path)
    with RunLog(tmp_path, a_config()) as log:
        log.begin(HERE)
        size = (tmp_path / "metrics.jsonl").stat().st_size
        with small_disk(size + 9), pytest.raises(UserError, match=r"metrics\.jsonl: cannot be written"):
            log.log({"step": 35, "loss": 0.5})
    assert (tmp_path / "metrics.jsonl").stat().st_size == size + 9
    with RunLog(tmp_path, a_config()) as log:
        log.begin(HERE)
        assert log.restore()[0] == 30
    assert (tmp_path / "metrics.jsonl").stat().st_size == size


def test_numbers_that_are_not_finite_are_legal_json(tmp_path):
    with RunLog(tmp_path, a_config()) as log:
        log.begin(HERE)
        log.log({"step": 1, "loss": float("nan"), "grad_norm": float("inf")})
        log.finish({"final_bpb": float("nan"), "evals": [(0, float("-inf"))]}, {}, "diverged")
    for name in ("metrics.jsonl", "summary.json"):
        json.loads((tmp_path / name).read_text(), parse_constant=lambda name: pytest.fail(name))
    assert rundir.read_rows(tmp_path) == [{"step": 1, "loss": None, "grad_norm": None}]


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (RuntimeError("out of memory\nsecond line"), "failed", "RuntimeError: out of memory"),
        (UserError("too short"), "failed", "too short"),
        (KeyboardInterrupt("SIGINT"), "interrupted", "SIGINT"),
    ],
)
def test_an_exception_is_noted_as_the_end(tmp_path, error, state, reason):
    with pytest.raises(type(error)), RunLog(tmp_path, a_config()) as log:
        log.begin(HERE)
        raise error
    found = rundir.read(tmp_path)
    assert (found["state"], found["reason"]) == (state, reason)


def test_what_changed_between_sittings_equals_no_other_run(tmp_path, capsys):
    interrupted(tmp_path)
    for _ in range(2):
        with RunLog(tmp_path, a_config()) as log:
            log.begin(HERE | {"threads": 8})
    assert rundir.load(tmp_path / "provenance.json") == {"device": "cpu", "threads": "1 then 8"}
    assert "begun with threads 1, goes on with 8" in capsys.readouterr().err


def test_other_peoples_files_and_places_give_one_line(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/diary.txt").write_text("mine")
    (tmp_path / "file").write_text("")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.yaml").write_text("a: [")
    for place, words in [
        ("notes", "not a run's folder: it holds diary.txt"),
        ("file", "cannot be written: File exists"),
        ("file/below", "cannot be written: Not a directory"),
        ("broken", "config.yaml is damaged"),
    ]:
        with pytest.raises(UserError, match=words) as caught:
            RunLog(tmp_path / place, a_config()).__enter__()
        assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path / "notes") == ["diary.txt"]


@pytest.mark.parametrize("name", ["summary.json", "status.json", "config.yaml"])
def test_damage_is_read_as_damage(tmp_path, name):
    finished(tmp_path)
    (tmp_path / name).write_text("{")
    found = rundir.read(tmp_path)
    assert found["state"] == "damaged" and name in found["reason"]


def test_a_kill_between_status_and_summary_is_no_finished_run(tmp_path):
    finished(tmp_path)
    (tmp_path / "summary.json").unlink()
    assert rundir.read(tmp_path)["state"] == "interrupted" and not rundir.has_ended(tmp_path)


def test_tail_follows_a_run_through_a_cut(tmp_path):
    interrupted(tmp_path)
    tail = rundir.Tail(tmp_path)
    with RunLog(tmp_path, a_config()) as log:
        log.begin(HERE)
        assert tail.rows() == []
        log.log({"step": 31, "loss": 0.5})
        with open(tmp_path / "metrics.jsonl", "a") as file:
            file.write('{"step": 32, ')
            file.flush()
            assert tail.rows() == [{"step": 31, "loss": 0.5}]
            file.write('"loss": 1}\n')
        assert tail.rows() == [{"step": 32, "loss": 1}]


def test_plan_keeps_all_that_was_ever_planned(tmp_path):
    rundir.write_plan(tmp_path, ["baseline/seed0", "gelu/seed0"])
    rundir.write_plan(tmp_path, ["gelu/seed1", "baseline/seed0"])
    assert rundir.load(tmp_path / "plan.json") == {"runs": ["baseline/seed0", "gelu/seed0", "gelu/seed1"]}


def test_identity_is_short_safe_and_one_to_one():
    configs = [a_config(), a_config(seed=13)]
    configs[1]["run"]["sweep"] = "x" * 300
    configs += [a_config(), a_config()]
    configs[2]["run"]["variant"] = "gelu train.lr=0.001"
    configs[3]["runs_dir"] = "/elsewhere"
    names = [rundir.identity(config) for config in configs]
    assert names[0] == names[3] and len(set(names)) == 3
    assert all(len(name) <= 64 and not set(name) - set(f"{string.ascii_letters}{string.digits}_-") for name in names)


def test_provenance_tells_code_and_changes_apart(tmp_path):
    def git(*command):
        me = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *me, *command], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "gpt.py").write_text("a = 1\n")
    (tmp_path / "results").mkdir()
    for name in ("README.md", "results/README.md", "notes.md"):
        (tmp_path / name).write_text("hello\n")
    bare = provenance.provenance(HERE, tmp_path)
    assert bare["commit"] is bare["dirty"] is bare["diff_sha256"] is None
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    clean = provenance.provenance(HERE, tmp_path)
    assert len(clean["commit"]) == 40 and clean["dirty"] is False and clean["code_sha256"] == bare["code_sha256"]
    for name in ("README.md", "results/README.md"):  # a sweep rewrites both
        (tmp_path / name).write_text("changed\n")
    assert provenance.provenance(HERE, tmp_path) == clean
    (tmp_path / "notes.md").write_text("changed\n")
    words = provenance.provenance(HERE, tmp_path)
    assert words["dirty"] is True and len(words["diff_sha256"]) == 64 and words["code_sha256"] == clean["code_sha256"]
    (tmp_path / "gpt.py").write_text("a = 2\n")
    assert provenance.provenance(HERE, tmp_path)["code_sha256"] != clean["code_sha256"]


def test_provenance_holds_no_names_paths_or_secrets(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "s3cret")
    monkeypatch.setattr(platform, "node", lambda: "secret-host")
    told = json.dumps(provenance.provenance(HERE))
    for private in ("s3cret", str(Path.home()), str(provenance.ROOT), "secret-host"):
        assert private not in told
    assert {"python", "torch", "cpu", "platform", "code_sha256", "commit"} <= json.loads(told).keys()


def test_reading_a_folder_needs_no_torch(tmp_path):
    finished(tmp_path)
    code = "import sys; from storage import rundir; print(rundir.read(sys.argv[1])['state'], 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=provenance.ROOT, capture_output=True, text=True
    )
    assert done.stdout.split() == ["finished", "False"], done.stderr
