"""conf/family: settings of the published models, at their sizes and at one to train on a CPU."""

from dataclasses import fields

import pytest
import torch
import yaml
from omegaconf import OmegaConf

import cli
from config import Config, ModelConfig, from_plain
from conftest import ROOT
from families.settings import settings
from gpt import GPT
from limits import check
from test_families import model_of
from training import cost

PUBLISHED = yaml.safe_load((ROOT / "data/families.yaml").read_text())
FILES = sorted(path.stem for path in (ROOT / "conf/family").glob("*.yaml"))
LARGE = [name for name in FILES if not name.endswith("_tiny")]
CLASSES = {
    "gpt1": "OpenAIGPT", "gpt2": "GPT2", "gptj": "GPTJ", "gpt_neox": "GPTNeoX", "llama2": "Llama", "llama3": "Llama",
    "mistral": "Mistral", "mixtral": "Mixtral", "qwen2": "Qwen2", "qwen3": "Qwen3", "olmo2": "Olmo2",
    "gemma2": "Gemma2", "gemma3": "Gemma3", "gpt_oss": "GptOss", "deepseek_v2": "DeepseekV2",
    "deepseek_v3": "DeepseekV3",
}  # fmt: skip
FORM = (
    "wiring", "norm", "qk_norm", "qk_norm_over", "mlp", "attention", "bias", "position", "sinks", "gating", "router",
    "gate_sum", "embedding_power", "latent_eps",
)  # fmt: skip


def config_of(name: str) -> Config:
    composed = cli.compose([f"family={name}"])
    return from_plain(
        OmegaConf.to_container(OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"]))
    )


@pytest.fixture(scope="module", params=LARGE)
def pair(request) -> tuple[str, Config, Config]:
    """A family at its published size and tiny."""
    return request.param, config_of(request.param), config_of(f"{request.param}_tiny")


def test_every_file_is_tested():
    assert set(LARGE) == set(CLASSES) | {"vaswani2017"} and set(PUBLISHED) == set(CLASSES)
    assert set(FILES) == {*LARGE, *(f"{name}_tiny" for name in LARGE)}


def test_every_knob_of_it_is_in_range_and_read(pair):
    for config in pair[1:]:
        check(config)
        cost.require_read(config.model)
        assert not config.about.matched and config.about.label != Config().about.label


def test_it_has_as_many_parameters_as_its_authors_say(pair):
    name, config, _ = pair
    if name not in PUBLISHED:
        return
    stated = PUBLISHED[name]
    found = cost.of_config(config.model, stated["vocab"])
    assert found.total / 1e9 == pytest.approx(stated["total"], rel=0.01)
    assert found.active / 1e9 == pytest.approx(stated.get("active", stated["total"]), rel=0.02)


def test_it_is_the_form_that_the_class_of_that_name_is_proven_equal_in(pair):
    name, config, _ = pair
    if name in CLASSES:
        proven = settings(model_of(CLASSES[name]).config)
        assert form(config.model) == form(proven)


def form(c: ModelConfig) -> dict:
    return {knob: getattr(c, knob) for knob in FORM}


def test_tiny_it_differs_in_numbers_alone_and_learns(pair):
    _, large, small = pair
    for f in fields(ModelConfig):
        mine, other = getattr(small.model, f.name), getattr(large.model, f.name)
        assert mine == other or f.name in cost.SIZE or type(mine) is type(other) in (int, float), f.name
    assert form(small.model) == form(large.model)
    assert cost.of_config(small.model, 100).total < 1e6
    model, ids = GPT(small.model, 50).init(0), torch.randint(50, (4, small.model.context + 1))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_a_family_trains_with_the_usual_command(command):
    done = command("family=gemma3_tiny", "train.steps=2", "train.checkpoints=[]")
    assert done.returncode == 0 and "Gemma 3, tiny" in done.stdout
    assert "-gemma3_tiny/baseline/seed0" in done.stdout
    wrong = command("family=lama2")
    assert wrong.returncode == 2 and "family=lama2: unknown, did you mean llama2?" in wrong.stderr
