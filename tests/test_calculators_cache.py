"""The cache calculator prints the post's lines, counts what published models have, and refuses what it cannot know."""

import json
import os
import subprocess
import sys

import pytest
import torch

from calculators import counts, hf, kv_cache, models, sizing
from config import ModelConfig
from conftest import DEFAULTS, ROOT
from parts.latent import Latent
from parts.positions import RoPE
from training import cost

POST = """\
GPT-3 175B (MHA)               KV cache    4608 KiB per token; attention weights per layer  604.0M (with full MHA:  604.0M)
Llama 2 70B (GQA, 8 groups)    KV cache     320 KiB per token; attention weights per layer  151.0M (with full MHA:  268.4M)
Llama 3 8B (GQA, 8 groups)     KV cache     128 KiB per token; attention weights per layer   41.9M (with full MHA:   67.1M)
DeepSeek-V2 (MLA)              KV cache      68 KiB per token; the same heads with MHA: 3,840 KiB, 57 times as much
Mixtral 8x7B                    47.0B parameters, 13.0B used per token (28%): per-token FLOPs of a 13B model, memory of a 47B one
DeepSeek-V2                    236.0B parameters, 21.0B used per token (9%): per-token FLOPs of a 21B model, memory of a 236B one
"""  # noqa: E501
MODELS = models.entries()


def tool(name: str, folder, *arguments) -> subprocess.CompletedProcess:
    """`python -m calculators.NAME ARGUMENTS` in a folder of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", f"calculators.{name}", *map(str, arguments)]
    return subprocess.run(line, **{**DEFAULTS, "cwd": folder, "env": env})


def asked(capsys, *arguments) -> dict:
    """The JSON of the command, in this process."""
    assert kv_cache.main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["models"][0]


def refused(capsys, main, *arguments) -> str:
    """The one line of a mistake."""
    assert main(list(map(str, arguments))) == 2
    found = capsys.readouterr()
    assert not found.out and found.err.count("\n") == 1
    return found.err


def test_without_an_argument_the_lines_and_sums_of_the_documents(tmp_path):
    done = tool("kv_cache", tmp_path)
    assert done.returncode == 0 and done.stdout.startswith(POST), done.stderr
    assert all(words in done.stdout for words in ("18 GiB", "43 GB", "344 GB", ": 70 KB"))
    assert (tmp_path / "results/calculators/kv_cache.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", MODELS)
def test_counted_parameters_are_those_that_the_makers_tell(name):
    m = models.published(name)
    size = counts.size(m)
    assert size.total == pytest.approx(m.published_total, rel=0.06)
    tables = size.parts["embedding"] + size.parts["unembedding"]  # that only some makers call active
    if m.published_active:  # mostly in whole billions
        assert size.active - tables - 0.5e9 < m.published_active < size.active + 0.5e9
    else:
        assert size.active == size.total


@pytest.mark.parametrize("name", MODELS)
def test_every_field_has_one_source(name):
    groups = [set(group) - set(models.ABOUT) for group in MODELS[name]["fields"]]
    assert all(len(source) > 10 for source in models.sources(MODELS[name]))
    assert sum(map(len, groups)) == len(set().union(*groups))


def test_windows_bound_the_cache_and_states_do_not_grow(capsys):
    short, long = (asked(capsys, "--model", "mistral-7b", "--context", T) for T in ("4096", "128k"))
    assert short["bytes_per_sequence"] == long["bytes_per_sequence"] == 4096 * short["bytes_per_token"]
    gemma = asked(capsys, "--model", "gemma-3-27b", "--context", "128k")
    a_layer = gemma["bytes_per_token"] / 62
    assert gemma["bytes_per_sequence"] == a_layer * (10 * 128 * 1024 + 52 * 1024)
    jamba = asked(capsys, "--model", "jamba", "--context", 1)
    assert jamba["bytes_per_token"] == 4 * 2 * 8 * 128 * 2
    assert jamba["state_bytes"] == 28 * 8192 * (16 + 3) * 4 == jamba["bytes_per_sequence"] - jamba["bytes_per_token"]


def test_bits_batch_and_split(capsys):
    whole = asked(capsys, "--model", "llama-3-70b", "--context", "128k", "--tp", 4)
    assert whole["bytes_per_sequence"] == 320 * 1024 * 128 * 1024
    assert whole["bytes_per_sequence_per_gpu"] == whole["bytes_per_sequence"] / 4
    assert whole["sequences"] == int((80 * 1024**3 - whole["weight_bytes"] / 4) // whole["bytes_per_sequence_per_gpu"])
    half = asked(capsys, "--model", "llama-3-70b", "--context", "128k", "--bits", 8, "--batch", 3)
    assert half["bytes_per_batch"] == 3 * whole["bytes_per_sequence"] / 2
    repeated = asked(capsys, "--model", "llama-3-70b", "--context", "128k", "--tp", 16)
    assert repeated["bytes_per_sequence_per_gpu"] == whole["bytes_per_sequence"] / 8
    latent = asked(capsys, "--model", "deepseek-v3", "--tp", 8)
    assert latent["bytes_per_sequence_per_gpu"] == latent["bytes_per_sequence"]


def test_flags_alone_and_over_a_model(capsys):
    flags = ["--layers", 32, "--heads", 32, "--kv-heads", 8, "--head-size", 128]
    assert asked(capsys, *flags)["bytes_per_token"] == 128 * 1024
    assert asked(capsys, *flags)["sequences"] is None
    assert asked(capsys, *flags, "--parameters", "8e9")["sequences"] > 100
    every = asked(capsys, *flags, "--attention-every", 4, "--state", 1000)
    assert every["bytes_per_token"] == 32 * 1024 and every["state_bytes"] == 24 * 1000 * 4
    assert asked(capsys, "--model", "llama-3-8b", "--kv-heads", 1)["bytes_per_token"] == 16 * 1024


TINY = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "intermediate_size": 96}  # fmt: skip
MOE = {"moe_intermediate_size": 40, "num_experts_per_tok": 2}
MLA = {**MOE, "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
       "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 2, "head_dim": 8}  # fmt: skip
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16}
KINDS = {
    "llama": {}, "qwen2": {}, "gemma3_text": {}, "olmo2": {}, "deepseek_v3": MLA,
    "qwen3_moe": {**MOE, "num_experts": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "qwen3_next": {**MOE, **DELTA, "num_experts": 6, "shared_expert_intermediate_size": 24},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "jamba": {"num_experts": 4, "mamba_d_state": 6, "mamba_dt_rank": 5},
    "llama4_text": {"num_local_experts": 4, "intermediate_size_mlp": 112, "interleave_moe_layer_step": 2},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_configuration_file_is_counted_as_transformers_builds_it(kind, tmp_path):
    transformers = pytest.importorskip("transformers", reason="the counts are held to transformers' own models")
    config = transformers.AutoConfig.for_model(kind, **{**TINY, **KINDS[kind]})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict()))
    m, notes = hf.read(path, {})
    assert counts.size(m).total == sum(p.numel() for p in model.parameters()) and not notes


def test_what_a_file_does_not_say_is_an_error_or_a_note(capsys, tmp_path):
    path = tmp_path / "config.json"
    plain = {**TINY, "model_type": "llama"}
    for field in ("num_key_value_heads", "num_hidden_layers", "hidden_size", "vocab_size"):
        path.write_text(json.dumps({key: value for key, value in plain.items() if key != field}))
        assert f"no {field}" in refused(capsys, kv_cache.main, "--config", path)
    path.write_text(json.dumps({**plain, "num_hidden_layers": "eight"}))
    assert "num_hidden_layers='eight'" in refused(capsys, kv_cache.main, "--config", path)
    path.write_text(json.dumps({key: value for key, value in plain.items() if key != "head_dim"}))
    assert "64 / 4 = 16" in asked(capsys, "--config", path)["notes"][0]
    path.write_text(json.dumps({**plain, "model_type": "new"}))
    assert "new is not known" in asked(capsys, "--config", path)["notes"][0]
    path.write_text(json.dumps({**plain, "model_type": "new", "layer_types": ["linear_attention"] * 8}))
    assert "linear_attention" in refused(capsys, kv_cache.main, "--config", path)
    path.write_text("[]")
    assert "JSON object" in refused(capsys, kv_cache.main, "--config", path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--model", "llama-3-8"], "did you mean llama-3-8b"), (["--model", "gpt-3", "--context", "0"], "--context"),
        (["--model", "gpt-3", "--batch", "-2"], "--batch"), (["--model", "gpt-3", "--gpu", "big"], "--gpu"),
        (["--model", "gpt-3", "--bits", "0"], "--bits"), (["--layers", "2"], "--heads, --kv-heads, --head-size"),
        (["--model", "gpt-3", "--tp", "7"], "96 query heads"), (["--config", "none.json"], "none.json"),
        (["--model", "gpt-3", "--windows", "8,some"], "--windows"), (["--context", "8"], "--layers"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(line, words, capsys):
    assert words in refused(capsys, kv_cache.main, *line)


def sized(capsys, *arguments) -> dict:
    assert sizing.main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["models"][0]


def test_sizing_of_published_models(capsys):
    llama, palm = sized(capsys, "--model", "llama-3-8b"), sized(capsys, "--model", "palm-540b")
    assert llama["parts"]["mlp"] // 32 == 3 * 4096 * 14336 and llama["crossing_in_widths"] == 10.5
    assert palm["twelve_l_d2"] == 12 * 118 * 18432**2 and sum(palm["parts"].values()) == palm["total"]
    assert sizing.main([]) == 0
    told = capsys.readouterr().out
    assert all(words in told for words in ("T = 32,768 = 8 D", "176M a layer", "8 D² both"))


@pytest.mark.parametrize("swap", ["baseline", "gelu", "moe", "mla"])
def test_sizing_of_gpt_counts_each_parameter_once(swap, capsys, freeze):
    config = freeze(f"swap={swap}").config
    found = sized(capsys, "--vocab", config.run.vocab_size, "scale=smoke", f"swap={swap}")
    told = cost.of_config(config.model, config.run.vocab_size)
    assert (found["total"], found["active"]) == (told.total, told.active)
    assert found["non_embedding"] == told.non_embedding
    if swap in ("baseline", "gelu"):
        assert found["crossing_in_widths"] == pytest.approx(8, rel=0.01)


@pytest.mark.parametrize(
    ("line", "words"),
    [(["swap=gelu"], "--vocab"), (["--vocab", "9", "swap=geluu"], "did you mean gelu"), (["--vocab", "0"], "--vocab")],
)
def test_sizing_refuses_in_one_line(line, words, capsys):
    assert words in refused(capsys, sizing.main, *line)


def test_a_rotated_key_cannot_be_folded_into_the_query():
    """One matrix serves every distance without a rotation; with it, one more for each distance until the heads end."""
    c = ModelConfig(n_head=2, d_model=48, context=32)
    torch.manual_seed(0)
    readers = torch.randn(24, Latent(c, 0).latent)  # latent -> the key of one head
    columns = readers.T.unsqueeze(1).expand(-1, 32, -1).unsqueeze(0)  # (1, latent, places, head size)
    ranks = [
        int(torch.linalg.matrix_rank(stack[0].transpose(0, 1).flatten(1), rtol=1e-4))
        for stack in (columns, RoPE(c).rotate(columns))
    ]
    assert ranks[0] == 1 and ranks[1] > 6
