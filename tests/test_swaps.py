"""The contract, stated once and applied to every file in conf/swap."""

import math
from pathlib import Path

import pytest
import torch
import yaml

import gpt
from analysis import published
from config import Config, ModelConfig, UserError, from_plain, to_plain
from conftest import NEEDS, ROOT, SWAPS, frozen
from engine.plan import Job, require_one_seam
from limits import SEAMS
from parts.positions import POSITIONS
from storage.files import flatten
from text import corpus
from training import cost, optim
from training.objective import AfterStep, Objective

V = 50
PLACES = ("about.", "run.", "runs_dir", "results_dir")  # what is no knob
# Knobs that logits of equal weights do not show.
UNSEEN = ("train.", "text.", "model.dropout", "model.tied", "model.predict_ahead")


def build(model: ModelConfig, seed: int = 0) -> gpt.GPT:
    return gpt.GPT(model, V).init(seed)


def loud(model: gpt.GPT) -> gpt.GPT:
    """With weights of a trained size: at the start every branch is so quiet that a dead one looks alive."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim >= 2:
                p.mul_(15)
            else:
                p.add_(torch.randn(p.shape, generator=draw), alpha=0.3)
    return model.eval()


def updates(config: Config, steps: int = 3) -> list[float]:
    """The loss before each of a few updates on one batch."""
    text = corpus.load(config.text)
    model = gpt.GPT(config.model, text.vocab_size).init(config.seed)
    objective, optimizer = Objective(model, config.train), optim.OPTIMIZERS[config.train.optimizer](model, config.train)
    inputs, targets = corpus.batch(text.train, 0, 0, 8, config.model.context)
    losses = []
    for step in range(steps):
        torch.manual_seed(0)
        for group in optimizer.param_groups:
            group["lr"] = optim.rate(step, config.train)
        row = objective(inputs, targets)
        row["total"].backward()
        optimizer.step()
        optimizer.zero_grad()
        AfterStep(model)()
        losses.append(row["loss"].item())
    return losses


def turned(job: Job, base: Job) -> set[str]:
    mine, other = flatten(to_plain(job.config)), flatten(to_plain(base.config))
    return {key for key in mine if mine[key] != other[key] and not key.startswith(PLACES)}


@pytest.fixture(scope="module", params=SWAPS)
def job(request, tmp_path_factory, text_file):
    return frozen(tmp_path_factory.mktemp("job"), text_file, f"swap={request.param}", *NEEDS.get(request.param, []))


@pytest.fixture(scope="module")
def base(job, tmp_path_factory, text_file):
    """The baseline, as large as the swap is here."""
    own = ("train.warmup", "train.horizon", "text.")
    needs = [need for need in NEEDS.get(job.config.run.swap, []) if not need.startswith(own)]
    return frozen(tmp_path_factory.mktemp("base"), text_file, *needs)


def test_every_listed_swap_is_tested():
    assert len(SWAPS) >= 5 and "baseline" in SWAPS


def test_touches_one_seam(job, base):
    """And those of the swaps that it stands on, which turn one each."""
    seams = [yaml.safe_load(file.read_text())["about"]["seam"] for file in stack(job.config.run.swap)]
    changed = turned(job, base)
    assert changed <= {key for seam in seams for key in SEAMS[seam]}
    assert bool(changed) == (job.config.run.swap != "baseline")


def stack(swap: str) -> list[Path]:
    """The file of a swap, and of each that it stands on."""
    file = ROOT / "conf/swap" / f"{swap}.yaml"
    below = (yaml.safe_load(file.read_text()) or {}).get("defaults", [])
    found = [] if swap == "baseline" else [file]
    return found + [path for name in below if name != "_self_" for path in stack(name)]


def test_says_what_it_is(job):
    about = job.config.about
    assert about.label and about.seam in SEAMS
    if job.config.run.swap != "baseline":
        assert about.replaces and about.paper
        assert about.label != freeze_default_label()
    assert about.matched or about.reason


def freeze_default_label() -> str:
    from config import About

    return About().label


def test_is_causal(job):
    """No gradient flows from the logits of a place back to a later symbol."""
    model = loud(build(job.config.model))
    ids = torch.randint(V, (2, job.config.model.context))
    x = model.embedding(ids).detach().requires_grad_()
    model.embedding.forward = lambda ids: x
    place = ids.shape[1] // 2
    model(ids)[:, place].sum().backward()
    assert x.grad[:, : place + 1].abs().sum() > 0
    assert x.grad[:, place + 1 :].abs().max() == 0


def test_starts_near_a_uniform_guess(job):
    model = build(job.config.model).eval()
    ids = torch.randint(V, (8, job.config.model.context + 1))
    assert gpt.loss(model(ids[:, :-1]), ids[:, 1:]).item() == pytest.approx(math.log(V), abs=0.1)


def test_every_parameter_learns(job):
    model = build(job.config.model)
    ids = torch.randint(V, (4, job.config.model.context + 1))
    Objective(model, job.config.train)(ids[:, :-1], ids[:, 1:])["total"].backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0]
    assert not silent


def test_is_live(job, base):
    """With the weights they share, the swap and the baseline give different logits, or learn differently.

    On texts longer than the context, where the swap knows their places: some swaps are made for them.
    """
    if job.config.run.swap == "baseline":
        return
    if all(key.startswith(UNSEEN) for key in turned(job, base)):
        assert updates(job.config) != updates(base.config)
        return
    mine, other = loud(build(job.config.model)), loud(build(base.config.model))
    mine.load_state_dict({**mine.state_dict(), **{k: v for k, v in other.state_dict().items() if fits(mine, k, v)}})
    longer = 2 if POSITIONS[job.config.model.position].endless else 1
    ids = torch.randint(V, (2, longer * job.config.model.context))
    assert (mine(ids) - other(ids)).abs().max() > 1e-2


def fits(model, name, value) -> bool:
    return name in model.state_dict() and model.state_dict()[name].shape == value.shape


def test_shared_modules_start_equal(job, base):
    mine, other = (dict(build(j.config.model, 3).named_parameters()) for j in (job, base))
    shared = [name for name in mine if name in other and mine[name].shape == other[name].shape]
    assert "embedding.weight" in shared and len(shared) > 4
    assert all(torch.equal(mine[name], other[name]) for name in shared)
    other = build(job.config.model, 4).state_dict()
    assert not torch.equal(mine["embedding.weight"], other["embedding.weight"])


def test_costs_what_the_baseline_costs(job):
    mine, base = cost.require_match(job.config)
    assert not job.config.about.matched or abs(mine.non_embedding / base.non_embedding - 1) <= 0.01
    if job.config.run.swap == "gelu":
        assert mine == base  # 2 matrices of 4 D, 3 of 8/3 D


def test_flops_formula_agrees_with_torch_counter(job):
    from torch.utils.flop_counter import FlopCounterMode

    model, T = build(job.config.model), job.config.model.context
    ids, targets = torch.randint(V, (2, 2, T))
    with FlopCounterMode(display=False) as counter:
        Objective(model, job.config.train)(ids, targets)["total"].backward()
    assert counter.get_total_flops() / ids.numel() == pytest.approx(cost.cost(model, T).flops_per_token, rel=0.01)


def test_trains_to_the_same_loss_twice(job):
    first, second = updates(job.config), updates(job.config)
    assert first == second and first[-1] < first[0]


def test_survives_writing_down(job):
    assert from_plain(to_plain(job.config)) == job.config


def test_every_swept_swap_is_there_and_every_swap_is_swept():
    sweeps = [yaml.safe_load(path.read_text()) for path in (ROOT / "sweeps").glob("*.yaml")]
    swept = {swap for sweep in sweeps for swap in sweep["hydra"]["sweeper"]["params"]["swap"].split(",")}
    assert swept - {"baseline"} <= set(SWAPS)
    assert set(SWAPS) - swept <= {"no_dropout"}  # shows only at a scale that has dropout, and there the other way round


def test_every_swap_but_a_rung_has_its_saying():
    rungs = {swap for swap in SWAPS if swap.startswith("ladder_")}
    assert set(published.sayings()) == set(SWAPS) - rungs - {"baseline"}


def test_every_sweep_file_says_its_claim_and_command():
    """A reader of a sweep file finds the claim and the command in its first comment."""
    for path in (ROOT / "sweeps").glob("*.yaml"):
        lines = path.read_text().splitlines()
        assert lines[0] == "# @package _global_" and lines[1].startswith("# "), path
        assert any("make sweep" in line for line in lines[:6]), path


def test_a_swap_file_that_turns_more_than_its_seam_is_refused():
    require_one_seam("gelu", "mlp")
    require_one_seam("ladder_0", "wiring")
    with pytest.raises(UserError, match=r"gelu.yaml: seam norm turns model.norm, model.norm_eps, .* model.mlp"):
        require_one_seam("gelu", "norm")
    with pytest.raises(UserError, match=r"about.seam=mpl: unknown, did you mean mlp"):
        require_one_seam("gelu", "mpl")
