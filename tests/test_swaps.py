"""The contract, stated once and applied to every file in conf/swap."""

import math

import pytest
import torch

import gpt
from config import SEAMS, ModelConfig, UserError, from_plain, to_plain
from conftest import ROOT, SWAPS
from engine.plan import require_one_seam
from storage.files import flatten
from text import corpus
from training import cost, optim
from training.objective import AfterStep, Objective

V = 50


def build(model: ModelConfig, seed: int = 0) -> gpt.GPT:
    return gpt.GPT(model, V).init(seed)


def loud(model: gpt.GPT) -> gpt.GPT:
    """With weights of a trained size: at the start every branch is so quiet that a dead one looks alive."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim >= 2:
                p.mul_(5)
    return model.eval()


@pytest.fixture(params=SWAPS)
def job(request, freeze):
    return freeze(f"swap={request.param}")


def test_every_listed_swap_is_tested():
    assert len(SWAPS) >= 5 and "baseline" in SWAPS


def test_touches_one_seam(job, freeze):
    base = flatten(to_plain(freeze().config))
    mine = flatten(to_plain(job.config))
    changed = {key for key in mine if mine[key] != base[key] and not key.startswith(("about.", "run."))}
    assert changed <= set(SEAMS[job.config.about.seam])
    assert bool(changed) == (job.config.run.swap != "baseline")


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


def test_is_live(job, freeze):
    """With the weights they share, the swap and the baseline give different logits, or minimize another number.

    A swap of training alone is in test_touches_one_seam."""
    if job.config.model == freeze().config.model:
        return
    mine, base = loud(build(job.config.model)), loud(build(freeze().config.model))
    mine.load_state_dict({**mine.state_dict(), **{k: v for k, v in base.state_dict().items() if fits(mine, k, v)}})
    ids, targets = torch.randint(V, (2, 2, job.config.model.context))
    if job.config.about.seam == "objective":
        totals = [Objective(model, job.config.train)(ids, targets)["total"] for model in (mine, base)]
        assert abs(totals[0] - totals[1]) > 1e-2
    else:
        assert (mine(ids) - base(ids)).abs().max() > 1e-2


def fits(model, name, value) -> bool:
    return name in model.state_dict() and model.state_dict()[name].shape == value.shape


def test_shared_modules_start_equal(job, freeze):
    mine, base = build(job.config.model, 3).state_dict(), build(freeze().config.model, 3).state_dict()
    shared = [name for name in mine if name in base and mine[name].shape == base[name].shape]
    assert "embedding.weight" in shared and len(shared) > 4
    assert all(torch.equal(mine[name], base[name]) for name in shared)
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
    text = corpus.load(job.config.text)

    def losses():
        model = gpt.GPT(job.config.model, text.vocab_size).init(job.config.seed)
        objective = Objective(model, job.config.train)
        optimizer = optim.OPTIMIZERS[job.config.train.optimizer](model, job.config.train)
        for step in range(3):
            inputs, targets = corpus.batch(text.train, 0, step, 8, job.config.model.context)
            row = objective(inputs, targets)
            row["total"].backward()
            optimizer.step()
            optimizer.zero_grad()
            AfterStep(model)()
            yield row["loss"].item()

    first, second = list(losses()), list(losses())
    assert first == second and first[-1] < first[0]


def test_survives_writing_down(job):
    assert from_plain(to_plain(job.config)) == job.config


def test_every_sweep_file_says_its_claim_and_command():
    """A reader of a sweep file finds the claim and the command in its first comment."""
    for path in (ROOT / "sweeps").glob("*.yaml"):
        lines = path.read_text().splitlines()
        assert lines[0] == "# @package _global_" and lines[1].startswith("# "), path
        assert any("make sweep" in line for line in lines[:6]), path


def test_a_swap_file_that_turns_more_than_its_seam_is_refused():
    require_one_seam("gelu", "mlp")
    with pytest.raises(UserError, match=r"gelu.yaml: seam norm turns model.norm, model.norm_eps; .* model.mlp"):
        require_one_seam("gelu", "norm")
    with pytest.raises(UserError, match=r"about.seam=mpl: unknown, did you mean mlp"):
        require_one_seam("gelu", "mpl")
