"""nanoGPT's own CPU recipe, run from a copy of somebody's checkout: nothing of it stands in this project."""

import hashlib
import io
import os
import pickle
import re
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from bench.nanogpt import model_module
from bench.process import timed

# What its README gives for a machine without a GPU ("I only have a macbook"), whole.
RECIPE = (
    "config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=20", "--log_interval=1",
    "--block_size=64", "--batch_size=12", "--n_layer=4", "--n_head=4", "--n_embd=128", "--max_iters=2000",
    "--lr_decay_iters=2000", "--dropout=0.0",
)  # fmt: skip
DATA = Path("data/shakespeare_char")
CHECKPOINT = Path("out-shakespeare-char/ckpt.pt")
CODE = ("train.py", "model.py", "configurator.py", RECIPE[0])


class Peer:
    """A copy of a checkout in a folder of its own, with the text in the format of its prepare.py."""

    def __init__(self, checkout: Path, folder: Path, train: str, dev: str):
        self.folder = folder
        shutil.copytree(checkout, folder, ignore=shutil.ignore_patterns(".git", "out*", "*.bin", "*.pkl"))
        chars = sorted(set(train + dev))
        number = {char: n for n, char in enumerate(chars)}
        (folder / DATA).mkdir(parents=True, exist_ok=True)
        for name, part in (("train", train), ("val", dev)):
            np.array([number[char] for char in part], dtype=np.uint16).tofile(folder / DATA / f"{name}.bin")
        meta = {"vocab_size": len(chars), "itos": dict(enumerate(chars)), "stoi": number}
        (folder / DATA / "meta.pkl").write_bytes(pickle.dumps(meta))

    def run(self) -> dict:
        """Train once, on the threads it takes by itself. Returns nats per character and seconds.

        Raises UserError where it fails.
        """
        log, seconds = timed([sys.executable, "train.py", *RECIPE], self.folder, dict(os.environ))
        saved = torch.load(self.folder / CHECKPOINT, map_location="cpu", weights_only=True)
        with redirect_stdout(io.StringIO()):  # its model says how large it is
            nats = self.score(saved)
        estimate = float(saved["best_val_loss"])  # of a few random batches, the best of several
        return {"nats": nats, "its_own_estimate": estimate, "train_s": training_seconds(log), **seconds}

    @torch.no_grad()
    def score(self, saved: dict) -> float:
        """Nats per character of a checkpoint over the whole dev part, windows of its own context side by side.

        Each character but the very first is scored once.
        """
        peer = model_module(self.folder)
        model = peer.GPT(peer.GPTConfig(**saved["model_args"])).eval()
        model.load_state_dict(saved["model"])
        dev = torch.from_numpy(np.fromfile(self.folder / DATA / "val.bin", dtype=np.uint16).astype(np.int64))
        total = 0.0
        context = saved["model_args"]["block_size"]
        for x, y in zip(dev[:-1].split(context), dev[1:].split(context), strict=True):
            logits, _ = model(x[None], y[None])
            total += F.cross_entropy(logits[0], y, reduction="sum").item()
        return total / (len(dev) - 1)

    def facts(self) -> dict:
        """For the record: its recipe, and a fingerprint of the code that ran."""
        code = b"".join((self.folder / name).read_bytes() for name in CODE)
        return {"peer_recipe": RECIPE, "peer_code_sha256": hashlib.sha256(code).hexdigest()}


def training_seconds(log: str) -> float:
    """Seconds of all steps, from the time that it prints for each.

    A step that follows an evaluation has its time in it, and is counted as an average one.
    """
    times, evaluated = [], set()
    for line in log.splitlines():
        if step := re.match(r"step (\d+):", line):
            evaluated.add(int(step[1]))
        if row := re.match(r"iter (\d+): .* time ([\d.]+)ms", line):
            times.append((int(row[1]), float(row[2]) / 1000))
    plain = [seconds for step, seconds in times if step not in evaluated]
    return sum(plain) / len(plain) * len(times)
