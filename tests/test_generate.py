"""Generation: the cache changes nothing but the time, holds what the formula says, and mistakes are one line each."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import generate
from config import GenerateConfig, ModelConfig
from conftest import DEFAULTS, ROOT
from generate import chooser, written
from gpt import GPT, WIRINGS
from parts.memory import Memory
from storage import rundir, seal
from test_swaps import loud
from training import cost
from training.loop import run

V, CONTEXT = 50, 32
GREEDY = chooser(GenerateConfig(temperature=0), reserved=2)
KINDS = {
    "mha": {},
    "gqa": {"n_kv_head": 2, "qk_norm": "rmsnorm", "bias": "all"},
    "mqa": {"n_kv_head": 1},
    "windows": {"windows": "SL", "window": 5},
    "window of one": {"windows": "S", "window": 1},
    "sinks and caps": {"sinks": True, "score_softcap": 5.0, "logit_softcap": 9.0, "windows": "LS", "window": 4},
    "mla": {"attention": "mla"},
    "dsa": {"attention": "dsa", "sparse_keys": 5},
    "nsa": {"attention": "nsa", "sparse_block": 4, "sparse_blocks": 3, "sparse_window": 3},
    "delta": {"attention": "delta"},
    "ssm": {"attention": "ssm"},
    "hybrid": {"attention": "delta,ssm,mla,mha", "windows": "S", "window": 6},
    "no position": {"position": "none"},
    "sinusoidal": {"position": "sinusoidal"},
    "learned": {"position": "learned"},
    "nope_every": {"nope_every": 2},
    "linear": {"rope_scaling": "linear"},
    "yarn": {"rope_scaling": "yarn", "rope_factor": 3.0},
    "mla, yarn": {"rope_scaling": "yarn", "attention": "mla"},
    "untied, ahead": {"tied": False, "embedding_power": 0.25, "predict_ahead": 1},
    "experts": {"mlp": "moe_shared", "router": "sigmoid", "first_dense": 1},
    "wide heads": {"head_width": 20, "rotated": 8, "n_kv_head": 2, "score_scale": 0.5, "bias": "all"},
    "local base": {"windows": "SL", "window": 5, "rope_base_local": 100.0, "rope_scaling": "linear"},
    "trained scaling": {"rope_scaling": "turns", "rope_trained": 16, "rope_factor": 4.0, "rope_fast": 4.0},
    "mla, published": {"attention": "mla", "head_width": 16, "rotated": 8, "value_width": 10, "query_width": 24},
    "norm over heads": {"qk_norm": "rmsnorm", "qk_norm_over": "heads", "wiring": "output_norm"},
    **{wiring: {"wiring": wiring} for wiring in WIRINGS},
}


def made(**knobs) -> GPT:
    return loud(GPT(ModelConfig(**{"n_layer": 4, "n_head": 4, "d_model": 48, "context": CONTEXT, **knobs}), V).init(0))


def symbols(*shape: int) -> torch.Tensor:
    return torch.randint(2, V, shape, generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def filled(model: GPT, ids: torch.Tensor, first: int) -> tuple[torch.Tensor, Memory]:
    """Logits of ids (B, n), the first of them read at once and the others one by one; and the memory they leave."""
    memory = Memory(model.position, len(model.blocks), ids.shape[1])
    cuts = [0, *range(first, ids.shape[1] + 1)]
    parts = [model.states(ids[:, a:b], memory) for a, b in pairwise(cuts)]
    return model.unembed(torch.cat(parts, dim=1)), memory


@pytest.mark.parametrize("first", [1, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_part_by_part_gives_the_logits_of_the_whole_and_keeps_what_the_formula_says(kind, first):
    model, ids = made(**KINDS[kind]), symbols(2, 28)
    whole, (parts, memory) = model(ids), filled(model, ids, first)
    assert whole.std() > 1 and torch.allclose(whole, parts, atol=2e-3)
    held = sum(kept.numel() for kept in memory.tensors()) / ids.numel()
    assert held == pytest.approx(sum(block.attention.kv_numbers(28) for block in model.blocks))
    measured = sum(kept.nbytes for kept in memory.tensors()) / ids.numel()
    assert measured / 4 == pytest.approx(cost.cost(model, 28).kv_bytes_per_token / cost.BYTES, abs=0.5)  # float32


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_is_equal_with_and_without_cache(kind):
    """To beyond the context, where the model has places there."""
    model, count = made(**KINDS[kind]), 20 if kind == "learned" else 45
    with_cache, without = (written(model, symbols(7), count, GREEDY, cache) for cache in (True, False))
    assert len(with_cache) == 7 + count and torch.equal(with_cache, without)
    assert len(set(with_cache[7:].tolist())) > 1


def test_a_window_bounds_the_cache_however_long_the_text():
    model = made(windows="S", window=5)
    held = [sum(kept.numel() for kept in filled(model, symbols(1, n), first=9)[1].tensors()) for n in (28, 280)]
    assert held[0] == held[1] == 5 * 2 * 48 * 4


def test_latent_attention_at_the_published_sizes_keeps_512_and_64_numbers():
    """DeepSeek-V2 (arXiv:2405.04434), three of its layers; no memory is taken."""
    sizes = {"n_layer": 3, "d_model": 5120, "n_head": 128, "head_width": 128, "rotated": 64, "context": 64}
    sizes |= {"latent_width": 512, "query_width": 1536}
    with torch.device("meta"):
        model, ids = GPT(ModelConfig(attention="mla", **sizes), 100), torch.zeros(1, 40, dtype=torch.long)
    _, memory = filled(model.to(torch.bfloat16), ids, first=38)
    assert sum(kept.nbytes for kept in memory.tensors()) == 40 * 3 * (512 + 64) * cost.BYTES
    assert cost.cost(model, 64).kv_bytes_per_token == 3 * (512 + 64) * cost.BYTES


def test_room_is_taken_once():
    """A step writes into the buffers of the one before: nothing grows with the text."""
    model, ids = made(n_kv_head=2), symbols(1, 28)
    memory = Memory(model.position, 4, 28)
    places = set()
    with torch.inference_mode():
        for begin, end in [(0, 9), *((at, at + 1) for at in range(9, 28))]:
            model.states(ids[:, begin:end], memory)
            places.add(tuple(kept.data_ptr() for kept in memory.tensors()))
    assert len(places) == 1


def test_draws_stay_within_the_likeliest_symbols_and_follow_from_the_seed():
    logits = torch.tensor([9.0, 9.0, 0.1, 0.5, 0.4, 0.2, 0.3]).clamp(max=5)  # the first two are reserved
    logits[2:] = torch.tensor([0.1, 0.4, 0.3, 0.05, 0.15]).log()

    def drawn(**knobs) -> list[int]:
        choose = chooser(GenerateConfig(**knobs), reserved=2)
        return [int(choose(logits)) for _ in range(300)]

    assert set(drawn()) == {2, 3, 4, 5, 6}
    assert set(drawn(top_k=2)) == set(drawn(top_p=0.6)) == {3, 4} and set(drawn(top_p=0.8)) == {3, 4, 6}
    assert set(drawn(top_p=0.4)) == set(drawn(top_k=1)) == set(drawn(temperature=0)) == {3}
    assert set(drawn(top_k=99)) == {2, 3, 4, 5, 6} and drawn(temperature=0.2).count(3) > drawn().count(3)
    assert drawn(seed=1) == drawn(seed=1) != drawn(seed=2)


# ---- through the command ----


@pytest.fixture
def speak(freeze, capsys):
    """speak(folder, ...) -> exit status, text, lines of the error; a run is made by `run(*freeze(...))`."""

    def command(folder: Path, *words: str) -> tuple[int, str, list[str]]:
        status = generate.main([f"run={folder}", *words])
        said = capsys.readouterr()
        return status, said.out, said.err.splitlines()

    return command


@pytest.fixture
def finished(freeze):
    def made(*overrides: str) -> Path:
        job = freeze(*overrides, "train.steps=20", "train.checkpoints=[]")
        run(job.config, job.folder)
        return job.folder

    return made


@pytest.mark.parametrize(
    "overrides", [[], ["text.kind=byte"], ["swap=bpe", "text.bpe_vocab=300"], ["swap=local_global_1_1"]]
)
def test_a_run_writes_on_whatever_its_symbols_are(overrides, finished, speak):
    folder = finished(*overrides)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    words = ["prompt=abc ", "tokens=15", "temperature=0"]
    status, out, err = speak(folder, *words)
    assert status == 0 and out.startswith("abc ") and len(out) > len("abc \n") and not err
    assert speak(folder, *words, "cache=false")[1] == out
    drawn = [speak(folder, "prompt=abc ", "tokens=15", "top_k=9", f"seed={seed}")[1] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert before == {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_longer_than_trained_is_told_for_rotations_and_refused_for_learned_places(finished, speak):
    status, out, err = speak(finished(), "prompt=ab", "tokens=60")
    assert status == 0 and len(out) == 2 + 60 + 1
    assert err == ["warning: 62 symbols are more than the 32 that this run was trained on"]
    learned = finished("swap=learned")
    status, out, err = speak(learned, "prompt=ab", "tokens=31")
    said = "model.position=learned has the places of model.context=32 alone; behind this prompt at most 30"
    assert (status, out, err) == (2, "", [f"oneswap: tokens=31: {said}"])
    status, out, err = speak(learned, "prompt=ab", "tokens=30")
    assert status == 0 and not err and len(out) == 2 + 30 + 1


def test_mistakes_are_one_line(finished, speak, tmp_path, text_file):
    folder = finished()

    def told(*words, where=folder):
        status, out, err = speak(where, *words)
        assert status == 2 and not out and len(err) == 1
        return err[0].removeprefix("oneswap: ")

    assert told("prompt=ab Ü7") == "prompt: not in the run's training text: '7' 'Ü'"
    assert told("prompt=") == told() == "prompt=: must be a text to begin with"
    assert told("prompt=a", where=tmp_path / "none") == f"run={tmp_path / 'none'}: no such folder"
    assert told("prompt=a", where=tmp_path).endswith("no frozen configuration: config.yaml is not there")
    assert told("promt=a").startswith("promt: unknown, did you mean prompt? Allowed: cache, ")
    assert told("a") == "a: not of the form KEY=VALUE"
    assert told("prompt=a", "tokens=few").startswith("tokens=few: Value 'few'")
    assert told("prompt=a", "top_p=1.5") == "top_p=1.5: must be in (0, 1]"
    assert told("prompt=a", "temperature=0", "top_k=5").startswith("top_k=5: must be left out at temperature=0")
    (folder / "model.pt").write_bytes((folder / "model.pt").read_bytes()[:-100])
    assert "model.pt is damaged" in told("prompt=a")
    (folder / seal.SEAL).unlink()  # of an older run, say
    assert told("prompt=a").startswith(f"{folder / 'model.pt'}: ")
    (folder / "model.pt").unlink()
    assert "model.pt" in told("prompt=a")
    words = text_file.read_text()
    try:
        text_file.write_text(words.upper())
        assert told("prompt=a") == "text words: not the text that this run was frozen with"
    finally:
        text_file.write_text(words)


def test_weights_that_are_code_are_not_run(finished, speak):
    folder = finished()
    torch.save({"embedding.weight": Path("x")}, folder / "model.pt")
    seal.seal(folder, (folder / "summary.json").read_bytes())  # whoever plants it can do that, too
    status, out, err = speak(folder, "prompt=a")
    assert status == 2 and not out and len(err) == 1 and "Weights only load failed" in err[0]


def test_a_run_that_is_not_finished_is_refused(freeze, speak):
    job = freeze("train.steps=20", "train.save_every=5")

    def cut(row):
        if row["step"] == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(job.config, job.folder, cut)
    assert rundir.read(job.folder)["state"] == "interrupted"
    status, out, err = speak(job.folder, "prompt=a")
    assert status == 2 and not out
    assert err == [f"oneswap: run={job.folder}: interrupted at step 8; it must be finished"]


def test_the_command_line(finished, tmp_path):
    line, options = [sys.executable, str(ROOT / "generate.py"), f"run={finished()}"], {**DEFAULTS, "cwd": tmp_path}
    done = subprocess.run([*line, b"prompt=\xff"], **options)
    assert done.returncode == 2 and done.stderr == "oneswap: prompt=\\udcff: must be UTF-8\n"
    done = subprocess.run([*line, "prompt=ab c", "tokens=5"], **options)
    assert done.returncode == 0 and done.stdout.startswith("ab c") and len(done.stdout) == 4 + 5 + 1
