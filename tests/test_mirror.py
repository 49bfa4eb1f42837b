"""wandb repeats the local files and stands in nobody's way. Offline runs are read back with wandb's own reader."""

import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from config import Config, RunConfig, TrainConfig, UserError, to_plain
from storage import mirror, provenance, rundir, sync
from storage.runlog import RunLog

KEY = "k" * 40
SUMMARY = {"final_bpb": 2.5, "tokens_per_s": 99.0, "params": {"total": 7}, "evals": [[0, 8.0]]}


@pytest.fixture(autouse=True)
def stranger(monkeypatch, tmp_path):
    """A machine where nobody has logged in to wandb."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home/netrc"))
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


def a_config(root: Path, variant="gelu", seed=0) -> dict:
    run = RunConfig("smoke", "scratch", variant.split(",")[0], variant, text_sha256="ab", vocab_size=9)
    places = {"runs_dir": str(root / "runs"), "results_dir": str(root / "results")}
    return to_plain(replace(Config(seed=seed, run=run, train=TrainConfig(steps=40)), **places))


def folder_of(config: dict) -> Path:
    return Path(config["runs_dir"], "smoke", "scratch", config["run"]["variant"], f"seed{config['seed']}")


def train(config: dict, until=40, mode="offline", leave=None) -> dict[int, dict]:
    """Runs, or resumes, a pretended training run under a mirror. Returns what should stand at each step.

    `leave`: called instead of an orderly end, at step `until`.
    """
    folder = folder_of(config)
    with RunLog(folder, config) as log:
        log.begin({"code_sha256": "c0" * 32})
        point = log.restore()
        copy = mirror.Mirror(folder, config, mode)

        def note(row):
            log.log(row)
            copy.log(row)

        for step in range(point[0] + 5 if point else 0, until + 1, 5):
            if step:
                note({"step": step, "loss": 1 / step, "tokens_per_s": 5.0})
            if step % 20 == 0:
                note({"step": step, "val_bpb": 8 / (step + 1)})
            if step % 10 == 0:
                log.save(step, {})
        if leave:
            leave()
        log.finish(SUMMARY, {})
        copy.finish(SUMMARY, 0)
    return merged(rundir.read_rows(folder))


def merged(rows: list[dict]) -> dict[int, dict]:
    steps = {}
    for row in rows:
        steps.setdefault(row["step"], {}).update(row)
    return steps


def inspect(folder: Path) -> SimpleNamespace:
    """An offline run as wandb's own reader gives it: about, config, summary, history, exit (None: never ended)."""
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(folder)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    run = SimpleNamespace(config={}, summary={}, history=[], exit=None)
    for record in map(json.loads, said.splitlines()):
        content = record[record["type"]]
        if record["type"] == "run":
            run.about = content
            run.config |= content["config"]["update"]
        elif record["type"] in ("config", "summary"):
            getattr(run, record["type"]).update(content.get("update", {}))
        elif record["type"] == "history":
            run.history.append(content["item"])
        elif record["type"] == "exit":
            run.exit = content["exit_code"]
    return run


def offline_runs(config: dict) -> list[Path]:
    return sorted(folder_of(config).parent.parent.glob("wandb/offline-run-*"))


def bare(item: dict) -> dict:
    """A row of history without what wandb adds."""
    return {key: value for key, value in item.items() if not key.startswith("_")}


def test_each_run_has_an_id_of_its_own_and_all_its_rows(tmp_path):
    configs = [a_config(tmp_path, variant, seed) for variant in ("baseline", "gelu,train.lr=0.001") for seed in (0, 1)]
    expected = {mirror.identity(config): (config, train(config)) for config in configs}
    read = {run.about["run_id"]: run for run in map(inspect, offline_runs(configs[0]))}
    assert read.keys() == expected.keys() and len(read) == 4
    for name, run in read.items():
        config, rows = expected[name]
        assert run.about["run_group"] == "smoke/scratch" and run.about["job_type"] == config["run"]["swap"]
        assert run.about["display_name"] == f"{config['run']['variant']} s{config['seed']}"
        assert [item["_step"] for item in run.history] == list(rows) == list(range(0, 41, 5))
        assert [bare(item) for item in run.history] == list(rows.values())
        assert {"loss", "val_bpb"} <= run.history[4].keys()  # both rows of step 20
        assert run.summary["final_bpb"] == 2.5 and run.summary["tokens_per_s"] == 99
        assert run.exit == 0


def test_the_logged_config_is_flat_resolved_and_private(tmp_path):
    config = a_config(tmp_path)
    train(config)
    (found,) = offline_runs(config)
    run = inspect(found)
    logged = {key: value for key, value in run.config.items() if key != "_wandb"}
    expected = {"variant": "gelu", "swap": "gelu", "seed": 0, "scale": "smoke", "train.lr": 1e-3, "model.mlp": "swiglu"}
    assert expected.items() <= logged.items()
    assert logged["text_sha256"] == "ab" and logged["params.total"] == 7 and logged["code_sha256"] == "c0" * 32
    assert not [value for value in logged.values() if isinstance(value, dict) or "${" in str(value)]
    assert "host" not in run.about
    assert str(tmp_path).encode() not in (found / f"run-{mirror.identity(config)}.wandb").read_bytes()


KILLED = """
import os, sys
sys.path[:0] = ["tests", "."]
from test_mirror import *
train(a_config(Path(sys.argv[1])), until=35, mode=sys.argv[2], leave=lambda: os.kill(os.getpid(), 9))
"""


def killed(tmp_path: Path, mode: str) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), mode]
    done = subprocess.run(command, cwd=provenance.ROOT, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr


def test_killed_and_resumed_is_one_offline_run_with_each_step_once(tmp_path):
    config = a_config(tmp_path)
    killed(tmp_path, "offline")
    assert len(offline_runs(config)) == 1 and max(merged(rundir.read_rows(folder_of(config)))) == 35
    rows = train(config)
    (found,) = offline_runs(config)
    run = inspect(found)
    assert [item["_step"] for item in run.history] == list(range(0, 41, 5))
    assert [bare(item) for item in run.history] == list(rows.values())
    assert run.exit == 0


def test_a_run_that_fails_is_closed_as_failed(tmp_path):
    config = a_config(tmp_path)
    folder = folder_of(config)
    with RunLog(folder, config) as log:
        log.begin({})
        copy = mirror.Mirror(folder, config, "offline")
        row = {"step": 1, "loss": float("nan")}
        log.log(row)
        copy.log(row)
        copy.finish({}, 1)
        copy.log(row)  # nothing is open any more
    run = inspect(offline_runs(config)[0])
    assert run.exit == 1 and bare(run.history[0]) == {"step": 1, "loss": "NaN"}


def test_disabled_leaves_wandb_alone(tmp_path):
    code = f"""
import sys
sys.path[:0] = ["tests", "."]
from storage import mirror
assert "wandb" not in sys.modules
from test_mirror import *
config = a_config(Path({str(tmp_path)!r}))
train(config, mode="disabled")
config["wandb"]["mode"] = "disabled"
mirror.report(config)
print("wandb" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=provenance.ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
    assert not list(tmp_path.rglob("wandb"))


class Server:
    """As much of a wandb server as a run needs: it keeps the lines that each run streams to it, by their offset."""

    def __init__(self):
        self.runs: dict[str, dict] = {}  # id -> {"lines": [...], "config": ..., "exit": ...}
        self.fail = 0  # status of every POST to a path that holds `deaf`, where not 0
        self.deaf = "/"
        self.held = threading.Event()  # clear: accepts and never answers
        self.held.set()
        get, post = (lambda request: self.get(request)), (lambda request: self.post(request))
        methods = {"do_GET": get, "do_PUT": get, "do_POST": post, "log_message": lambda *words: None}
        handler = type("Handler", (BaseHTTPRequestHandler,), methods)
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.handle_error = lambda *words: None  # a client that would not wait any longer
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def get(self, request):
        request.rfile.read(int(request.headers.get("content-length", 0)))
        self.reply(request, {})

    def post(self, request):
        self.held.wait(30)
        body = json.loads(request.rfile.read(int(request.headers.get("content-length", 0))) or b"{}")
        if self.fail and self.deaf in request.path:
            return self.reply(request, {"errors": [{"message": "no such key"}]}, self.fail)
        if request.path == "/graphql":
            answer = getattr(self, body["operationName"], lambda variables: {})(body["variables"])
            return self.reply(request, {"data": answer})
        run = self.runs[request.path.split("/")[-2]]
        streamed = body.get("files", {}).get("wandb-history.jsonl")
        if streamed:
            run["lines"][streamed["offset"] :] = map(json.loads, streamed["content"])
        run["exit"] = body.get("exitcode", run.get("exit"))
        self.reply(request, {})

    def reply(self, request, answer: dict, status: int = 200):
        data = json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def UpsertBucket(self, given):
        run = self.runs.setdefault(given["name"], {"lines": []})
        run |= {key: given[key] for key in ("groupName", "jobType", "displayName", "config") if given[key]}
        project = {"id": "p", "name": given["project"], "entity": {"id": "e", "name": "me"}}
        bucket = {"id": "b", "name": given["name"], "project": project, "config": "{}", "historyLineCount": 0}
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}

    def RunResumeStatus(self, given):
        lines = self.runs.get(given["name"], {}).get("lines")
        if not lines:
            return {"model": {"id": "m", "name": given["project"], "entity": {"id": "e", "name": "me"}, "bucket": None}}
        bucket = {
            "id": "b",
            "name": given["name"],
            "config": "{}",
            "summaryMetrics": "{}",
            "historyLineCount": len(lines),
            "historyTail": json.dumps([json.dumps(lines[-1])]),
            "eventsLineCount": 0,
            "eventsTail": "[]",
            "logLineCount": 0,
            "tags": [],
            "wandbConfig": json.dumps({"t": 1}),
        }
        return {"model": {"id": "m", "name": given["project"], "entity": {"id": "e", "name": "me"}, "bucket": bucket}}

    def CreateRunFiles(self, given):
        files = [{"name": name, "uploadUrl": f"{self.url}/{name}"} for name in given["files"]]
        return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}


@pytest.fixture
def server(monkeypatch):
    """A wandb server that one is logged in to."""
    server = Server()
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    yield server
    sys.modules["wandb"].teardown()
    server.http.shutdown()
    server.http.server_close()


def test_auto_goes_online_where_a_key_is_found_and_the_server_answers(server, tmp_path, capsys):
    config = a_config(tmp_path)
    rows = train(config, mode="auto")
    run = server.runs[mirror.identity(config)]
    assert [bare(line) for line in run["lines"]] == list(rows.values()) and run["exit"] == 0
    assert (run["groupName"], run["jobType"], run["displayName"]) == ("smoke/scratch", "gelu", "gelu s0")
    assert mirror.identity(config) in capsys.readouterr().out  # its address


def test_online_and_killed_goes_on_where_the_server_stands(server, tmp_path):
    config = a_config(tmp_path)
    killed(tmp_path, "online")
    kept = server.runs[mirror.identity(config)]["lines"]
    del kept[3:]  # the server missed what came last
    rows = train(config, mode="online")
    lines = server.runs[mirror.identity(config)]["lines"]
    assert [line["_step"] for line in lines] == list(range(0, 41, 5))
    assert [bare(line) for line in lines] == list(rows.values())


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def test_sync_twice_leaves_each_row_once_and_the_folders_alone(server, tmp_path, capsys):
    configs = [a_config(tmp_path, seed=seed) for seed in (0, 1)]
    rows = [train(config) for config in configs]
    before = times(tmp_path / "runs/smoke/scratch/gelu")
    server.runs[mirror.identity(configs[0])] = {"lines": [{"_step": step, "loss": 0} for step in range(0, 99)]}
    for _ in range(2):
        assert sync.main([str(tmp_path / "runs")]) == 0
        assert server.runs.keys() == {mirror.identity(config) for config in configs}
        for config, expected in zip(configs, rows, strict=True):
            run = server.runs[mirror.identity(config)]
            assert [bare(line) for line in run["lines"]] == list(expected.values())
            assert run["exit"] == 0 and json.loads(run["config"])["params.total"]["value"] == 7
    assert len(capsys.readouterr().out.splitlines()) == 2 * 3  # two runs and the report
    assert times(tmp_path / "runs/smoke/scratch/gelu") == before


@pytest.mark.parametrize("deaf", ["graphql", "file_stream"])
def test_sync_names_what_failed(server, tmp_path, capsys, deaf):
    train(a_config(tmp_path))
    server.fail, server.deaf = 403, deaf
    assert sync.main([str(tmp_path / "runs")]) == 1
    assert "seed0: FAILED: " in capsys.readouterr().out


def test_sync_without_key_or_runs_is_one_line(tmp_path, capsys):
    assert sync.main([str(tmp_path)]) == 2
    train(a_config(tmp_path))
    assert sync.main([str(tmp_path / "runs")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "holds no run that has ended" in first and "no key for" in second


@pytest.mark.parametrize(
    ("mode", "key", "server", "problem"),
    [
        ("online", None, "refusing", "no key for"),
        ("online", "too-short", "refusing", "API key must have 40+ characters"),
        ("online", KEY, "refusing", "does not answer"),
        ("online", KEY, "silent", "does not answer"),
        ("auto", KEY, "silent", ""),
    ],
)
def test_no_key_or_no_server_means_offline_at_once(tmp_path, monkeypatch, capfd, mode, key, server, problem):
    monkeypatch.setattr(mirror, "ANSWER_WITHIN", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as port:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port.getsockname()[1]}")
        if key:
            monkeypatch.setenv("WANDB_API_KEY", key)
        if server == "refusing":
            port.close()
        config = a_config(tmp_path)
        rows = train(config, mode=mode)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == (mode == "online") and all(problem in line for line in said)  # auto says nothing
    (found,) = offline_runs(config)
    assert [bare(item) for item in inspect(found).history] == list(rows.values())


def test_a_refused_key_means_offline(server, tmp_path, capfd):
    server.fail = 401
    config = a_config(tmp_path)
    train(config, mode="online")
    assert "online run not started: no such key" in capfd.readouterr().err
    (found,) = offline_runs(config)
    assert inspect(found).exit == 0


def test_a_whole_process_without_key_or_terminal_ends_well(tmp_path):
    code = """
import sys
sys.path[:0] = ["tests", "."]
from test_mirror import *
train(a_config(Path(sys.argv[1])), mode="auto")
"""
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(
        command, cwd=provenance.ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("value", "mode"), [("offline", "offline"), ("disabled", "disabled"), ("dryrun", "offline")])
def test_the_environment_decides_where_the_config_does_not(monkeypatch, server, value, mode):
    assert mirror.resolve("auto") == "online"
    monkeypatch.setenv("WANDB_MODE", value)
    assert mirror.resolve("auto") == mode
    assert mirror.resolve("online") == "online" and mirror.resolve("disabled") == "disabled"


def test_a_key_in_netrc_is_found(server, monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY")
    assert mirror.resolve("auto") == "offline"
    (tmp_path / "home").mkdir()
    (tmp_path / "home/netrc").write_text(f"machine {server.url[7:]} login user password {KEY}\n")
    (tmp_path / "home/netrc").chmod(0o600)
    assert mirror.resolve("auto") == "online"


def test_a_client_that_dies_costs_one_warning(tmp_path, capfd):
    import psutil

    def kill():
        (core,) = [child for child in psutil.Process().children() if child.name() == "wandb-core"]
        core.kill()
        core.wait()

    train(a_config(tmp_path), leave=kill)
    assert rundir.has_ended(folder_of(a_config(tmp_path)))
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("warning: wandb: ")


def test_the_report_is_one_more_run_of_the_group(tmp_path):
    import matplotlib.pyplot as plt

    config = a_config(tmp_path) | {"results_dir": str(tmp_path / "results")}
    config["wandb"]["mode"] = "offline"
    results = tmp_path / "results/smoke/scratch"
    results.mkdir(parents=True)
    (results / "table.csv").write_text("variant,bpb\nbaseline,2.5\n")
    plt.figure().savefig(results / "curves.png")
    for _ in range(2):
        mirror.report(config)
    (found,) = offline_runs(config)
    run = inspect(found)
    assert run.about["job_type"] == "report" and run.about["run_group"] == "smoke/scratch" and run.exit == 0
    (logged,) = run.history
    assert (logged["table._type"], logged["table.nrows"], logged["table.ncols"]) == ("table-file", 1, 2)
    assert logged["curves._type"] == "image-file" and len(list(found.rglob("*.png"))) == 1


def test_sync_needs_a_folder_of_runs(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        sync.sync(tmp_path / "nowhere")


@pytest.mark.parametrize("trouble", ["errors", "silence"])
def test_a_server_that_fails_in_mid_run_costs_no_row_and_no_result(server, tmp_path, monkeypatch, capfd, trouble):
    monkeypatch.setattr(mirror, "LEAVE_AFTER", 1)
    config, plain = a_config(tmp_path), mirror.Mirror.log

    def log(copy, row):
        if row["step"] == 20 and trouble == "errors":
            server.fail = 500
        elif row["step"] == 20:
            server.held.clear()
        plain(copy, row)

    monkeypatch.setattr(mirror.Mirror, "log", log)
    rows = train(config, mode="online")
    server.held.set()
    assert list(rows) == list(range(0, 41, 5)) and rundir.read(folder_of(config))["state"] == "finished"
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("warning: wandb: not ended well: ")
