"""Checkpoints on disk: read tensor by tensor, whole or not at all."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import families
from config import UserError
from conftest import DEFAULTS, ROOT
from test_families import CASES, IDS, model_of


@pytest.mark.parametrize("kind", CASES)
def test_a_folder_gives_the_same_model_as_the_class(kind, tmp_path):
    """As the class writes it, which for some is not as it holds it, and in several files."""
    model = model_of(kind)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    mine, other = families.load(tmp_path).state_dict(), families.from_hf(model).state_dict()
    assert mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)


def test_the_type_is_the_one_that_is_stored_or_asked_for(tmp_path):
    model_of("Llama").bfloat16().save_pretrained(tmp_path)
    stored, asked = families.load(tmp_path), families.load(tmp_path, torch.float32)
    assert {p.dtype for p in stored.parameters()} == {torch.bfloat16}
    assert (stored(IDS) - asked(IDS)).abs().max() < 0.3 < asked(IDS).abs().max()


@pytest.fixture
def folder(tmp_path):
    model_of("Llama").save_pretrained(tmp_path)
    return tmp_path


def edited(folder, edit) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, {"format": "pt"})


KEY, MLP = "model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda t: t.pop(KEY), f"{KEY}: missing from the checkpoint"),
        (lambda t: (t.pop(KEY), t.pop(MLP)), f"{MLP}: missing from the checkpoint, and 1 more"),
        (lambda t: t.update({"model.layers.2.x": t[KEY].clone()}), "model.layers.2.x: no place for this tensor"),
        (
            lambda t: t.update({KEY: t[KEY][1:].clone()}),
            f"{KEY}: shape [47, 48] does not fill blocks.1.attention.qkv.weight (48 x 48)",
        ),
        (
            lambda t: t.update({MLP: t[MLP].T.contiguous()}),
            f"{MLP}: shape [48, 80] does not fill blocks.0.mlp.gate_up.weight (80 x 48)",
        ),
    ],
)
def test_a_wrong_tensor_is_named_before_any_is_read(folder, edit, said, monkeypatch):
    from families import weights

    edited(folder, edit)
    monkeypatch.setattr(weights, "on_disk", lambda path, real=weights.on_disk: unread(real(path)))
    with pytest.raises(UserError) as error:
        families.load(folder)
    assert str(error.value).startswith(said) and "\n" not in str(error.value)


def unread(stored):
    def get(name):
        raise AssertionError(f"{name} was read")

    return type(stored)(stored.shapes, get)


def test_a_wrong_shape_is_told_where_a_loader_must_take_it_apart():
    model = model_of("DeepseekV2")
    state, name = model.state_dict(), "model.layers.0.self_attn.kv_b_proj.weight"
    state[name] = state[name][:-1]
    model.state_dict = lambda: state
    with pytest.raises(UserError, match=rf"^{name}: shape \[67, 14\] does not fill .*read_key.weight"):
        families.from_hf(model)


def test_the_command_says_equal(folder):
    line = [sys.executable, "-m", "families", "check", str(folder)]
    done = subprocess.run(line, **{**DEFAULTS, "cwd": ROOT})
    assert done.returncode == 0 and "llama: logits differ by at most" in done.stdout and ": equal;" in done.stdout


def test_the_command_names_what_is_wrong(folder, capsys, monkeypatch):
    from families import __main__, weights

    real = weights.settings
    monkeypatch.setattr(weights, "settings", lambda config: replace(real(config), rope_base=100.0))
    assert __main__.main(["check", str(folder)]) == 1 and "NOT EQUAL" in capsys.readouterr().out
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "bloom"}))
    assert __main__.main(["check", str(folder)]) == 2
    assert "model_type=bloom: unknown" in capsys.readouterr().err
    assert __main__.main(["check", str(folder / "none")]) == 2
    assert "no such file; a checkpoint is a folder" in capsys.readouterr().err


MEASURE = """
import resource, sys
import families
families.load(sys.argv[1])  # so that all libraries are there
def now(): return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
open("/proc/self/clear_refs", "w").write("5")  # forget the peak
before = now()
model = families.load(sys.argv[2])
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
weights = sum(p.numel() * p.element_size() for p in model.parameters())
print(weights, peak - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("size", ["1GB", "50MB"])
def test_loading_takes_at_most_a_fifth_more_memory_than_the_weights(tmp_path, folder, size):
    large = model_of("Llama", hidden_size=512, intermediate_size=1408, num_hidden_layers=16, vocab_size=8000)
    large.save_pretrained(tmp_path / "large", max_shard_size=size)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), str(tmp_path / "large")], **{**DEFAULTS, "cwd": ROOT}
    )
    assert done.returncode == 0, done.stderr
    weights, taken = map(int, done.stdout.split())
    assert weights > 2e8 and taken <= 1.2 * weights
