"""`python -m bench.speedrun` through the real command, at a size of seconds, beside a peer made of two short files."""

import json
import math
import subprocess
import sys

import pytest

from bench import speedrun, speedrun_peer
from conftest import DEFAULTS, ROOT

MODEL = """
import torch
class GPTConfig:
    def __init__(self, block_size, vocab_size):
        self.vocab_size = vocab_size
class GPT(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(c.vocab_size))
    def forward(self, x, y):
        return self.logits.expand(*x.shape, -1), None
"""
TRAIN = """
import os, pickle, sys, torch, numpy as np
from model import GPT, GPTConfig
assert "--max_iters=2000" in sys.argv and len(np.fromfile("data/shakespeare_char/train.bin", np.uint16)) > 1000
args = {"block_size": 64, "vocab_size": pickle.load(open("data/shakespeare_char/meta.pkl", "rb"))["vocab_size"]}
os.makedirs("out-shakespeare-char")
saved = {"model": GPT(GPTConfig(**args)).state_dict(), "model_args": args, "best_val_loss": torch.tensor(1.25)}
torch.save(saved, "out-shakespeare-char/ckpt.pt")
for n in range(3):
    print(f"iter {n}: loss 1.0, time 500.00ms, mfu 1.00%")
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder that looks like nanoGPT; its model finds every character equally likely."""
    for name, text in {
        "train.py": TRAIN,
        "model.py": MODEL,
        "configurator.py": "",
        speedrun_peer.RECIPE[0]: "",
    }.items():
        path = tmp_path / "nanogpt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "nanogpt"


@pytest.fixture
def run(tmp_path, text_file):
    def go(*words: str) -> subprocess.CompletedProcess:
        small = ["model.d_model=24", "model.n_head=2", "train.steps=3", "machine.threads=1"]
        line = [sys.executable, "-m", "bench.speedrun", *words, "--text", str(text_file), *small]
        return subprocess.run([*line, f"results_dir={tmp_path / 'results'}"], **DEFAULTS, cwd=ROOT)

    return go


def written(tmp_path) -> tuple[dict, list[dict]]:
    """The record, and the rows of the run's metrics beside it."""
    (record,), (rows,) = (list((tmp_path / "results/speedrun").glob(f"*.{end}")) for end in ("json", "jsonl"))
    return json.loads(record.read_text()), [json.loads(line) for line in rows.read_text().splitlines()]


def test_both_are_run_scored_and_written_down(run, checkout, tmp_path, text_file):
    before = sorted(path.name for path in checkout.rglob("*"))
    done = run("--peer", str(checkout), "--target", "9", "--seeds", "3")
    assert done.returncode == 0, done.stderr
    record, rows = written(tmp_path)
    (one,) = record["rounds"]
    assert one["seed"] == 3 and one["ours"]["nats"] == rows[-1]["val_nats"] and rows[-1]["step"] == 3
    assert one["peer"]["nats"] == pytest.approx(math.log(len(set(text_file.read_text()))))
    assert one["peer"]["train_s"] == pytest.approx(1.5) and one["peer"]["its_own_estimate"] == 1.25
    assert 0 < one["ours"]["train_s"] < one["ours"]["wall_s"]
    assert record["ratio"]["wall_s"] == pytest.approx(one["peer"]["wall_s"] / one["ours"]["wall_s"])
    assert f"{record['ratio']['wall_s']:.2f}" in done.stdout and f"{one['ours']['nats']:.4f}" in done.stdout
    assert before == sorted(path.name for path in checkout.rglob("*"))


def test_a_missed_target_is_told_and_fails(run, tmp_path):
    done = run("--target", "0.01")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    record, _ = written(tmp_path)
    assert f"seed 0 missed the target: {record['rounds'][0]['ours']['nats']:.4f} > 0.01" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--peer", "/nowhere"], "--peer=/nowhere: no checkout of nanoGPT, train.py is not in it"),
        (["text.kind=byte"], "text.kind=byte: the target is in nats per character"),
        (["--seeds", "0,x"], "seed"),
        (["--seeds", "1,1"], "a seed counts once"),
    ],
)
def test_a_mistake_is_one_line_before_any_work(run, tmp_path, words, said):
    done = run(*words)
    assert done.returncode == 2 and not done.stdout
    assert len(done.stderr.splitlines()) == 1 and said in done.stderr
    assert not (tmp_path / "results").exists()


def test_a_step_with_an_evaluation_in_its_time_counts_as_an_average_one():
    log = "step 0: train loss 4.2\niter 0: loss 4.2, time 9000.00ms, mfu -1\n"
    log += "".join(f"iter {n}: loss 2.0, time {100 * n}.00ms, mfu 1%\n" for n in (1, 2, 3))
    assert speedrun_peer.training_seconds(log) == pytest.approx((0.1 + 0.2 + 0.3) / 3 * 4)


def test_the_verdict_is_of_medians():
    def of(nats, seconds):
        return {"nats": nats, **dict.fromkeys(speedrun.SECONDS, seconds)}

    rounds = [{"seed": n, "ours": of(1.0, a), "peer": of(2.0, b)} for n, (a, b) in enumerate([(1, 9), (2, 4), (9, 5)])]
    found = speedrun.verdict({"target": 1.5, "rounds": rounds})
    assert found["ratio"] == dict.fromkeys(speedrun.SECONDS, 2.5) and found["missed"] == []
    assert len(speedrun.verdict({"target": 0.5, "rounds": rounds})["missed"]) == 3
