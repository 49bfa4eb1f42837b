"""Differences, intervals, corrections and verdicts, on numbers whose truth is known."""

import gc

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.power import TTestPower

from analysis import earlier, published, stats
from analysis.study import study
from config import UserError
from records import FINALS, altered, sweep

POST = published.load()


def rows(records):
    return {row.variant.name: row for row in study(records).views[0].rows}


def judge(swaps: np.ndarray, baseline: np.ndarray) -> list[str]:
    """The verdicts of one sweep: swaps (m, n) against baseline (n,)."""
    found = [stats.paired(swap, baseline) for swap in swaps]
    return [stats.verdict(d, p) for d, p in zip(found, stats.holm([d.p for d in found]), strict=True)]


def test_paired_is_scipys_paired_t_test():
    swap, base = np.random.default_rng(1).normal(2.5, 0.02, (2, 5))
    mine, theirs = stats.paired(swap, base), scipy_stats.ttest_rel(swap, base)
    low, high = theirs.confidence_interval(0.95)
    assert np.allclose([mine.p, mine.low, mine.high], [theirs.pvalue, low, high], rtol=1e-9)


def test_a_study_of_nothing_gives_at_most_5_percent_false_verdicts():
    gc.freeze()  # statsmodels collects garbage in each call: slow, unless what is there now is passed over
    rng, draws = np.random.default_rng(0), 2000
    false = 0
    for _ in range(draws):
        shift = rng.normal(0, 0.02, 3)  # what a seed does to every variant
        runs = 2.5 + shift + rng.normal(0, 0.01, (5, 3))
        false += set(judge(runs[1:], runs[0])) != {stats.SAME}
    gc.unfreeze()
    assert 0.01 < false / draws <= 0.05


def test_intervals_cover_the_truth_in_95_percent():
    rng, draws = np.random.default_rng(2), 20_000
    d = stats.paired(rng.normal(0.19, 0.01, (draws, 3)), rng.normal(0, 0.01, (draws, 3)))
    covered = np.mean((d.low < 0.19) & (d.high > 0.19))
    assert abs(covered - 0.95) < 3 * (0.95 * 0.05 / draws) ** 0.5


def test_known_effects_are_found_with_their_sign():
    rng = np.random.default_rng(3)
    base = rng.normal(2.55, 0.02, 3)
    noise = rng.normal(0, 0.004, (3, 3))
    assert judge(base + noise + [[0.19], [-0.19], [0.0]], base) == [stats.WORSE, stats.BETTER, stats.SAME]


@pytest.mark.parametrize(("n", "family"), [(3, 1), (8, 4), (20, 12)])
def test_effect_agrees_with_statsmodels_where_that_converges(n, family):
    theirs = TTestPower().solve_power(None, nobs=n, alpha=0.05 / family, power=0.8)
    assert stats.effect(n, 0.05 / family) == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize(("n", "family"), [(2, 4), (3, 4), (3, 12), (5, 4)])
def test_a_resolvable_difference_is_found_in_80_percent(n, family):
    sd, draws = 0.01, 20_000
    least = stats.resolvable([sd], [100], n, family)
    d = stats.paired(np.random.default_rng(4).normal(least, sd, (draws, n)), np.zeros(n))
    assert np.mean(d.p < 0.05 / family) == pytest.approx(0.8, abs=0.012)


def test_differences_without_spread_do_not_crash():
    same, shifted = stats.paired([2.5] * 3, [2.5] * 3), stats.paired([2.75] * 3, [2.5] * 3)
    assert (same.p, same.low, same.high) == (1.0, 0.0, 0.0)
    assert shifted.p == 0 and stats.verdict(shifted, 0.0) == stats.WORSE
    assert np.isnan(stats.paired([], []).mean) and np.isnan(stats.paired([1.0], [2.0]).low)
    assert stats.resolvable([0.0, 0.0], [3, 3], 3, 2) == 0
    assert np.isnan(stats.resolvable([], [], 3, 4))


def test_holm_counts_what_cannot_be_tested_yet():
    assert np.allclose(stats.holm([0.01, 0.03]), [0.02, 0.03])
    assert np.allclose(stats.holm([0.01, 0.03, np.nan]), [0.03, 0.06, 1.0])


def test_a_sweep_as_it_should_be():
    found = rows(sweep(sd=0.01))
    assert [row.verdict for row in found.values()] == ["", "worse", "better", "worse", "worse"]
    assert found["gelu"].final.mean == pytest.approx(0.19, abs=0.01) and found["gelu"].at[200].mean > 0.19


@pytest.mark.parametrize("state", ["diverged", "failed", "interrupted", "missing", "damaged"])
def test_a_seed_without_a_result_blocks_the_verdict_and_is_named(state):
    records = altered(sweep(seeds=range(4)), "gelu/seed1", state=state, reason="why")
    gelu, base = rows(records)["gelu"], rows(altered(sweep(), "baseline/seed0", state=state))
    assert gelu.verdict == "incomplete" and len(gelu.final.values) == 3 and np.isnan(gelu.p)
    assert {row.verdict for row in base.values()} == {"", "incomplete"}
    found = study(records)
    assert found.gaps == [f"gelu/seed1 {state}: why"]
    assert any("baseline/seed1" in note and "Unpaired" in note for note in found.notes)


def test_two_seeds_are_too_few():
    assert {row.verdict for row in rows(sweep(seeds=(0, 1))).values()} == {"", "too few seeds"}


def test_a_seed_beyond_the_baselines_is_named_and_not_used():
    records = [r for r in sweep(seeds=range(4)) if (r["swap"], r["seed"]) != ("baseline", 3)]
    found = study(records)
    assert len(found.views[0].rows[1].final.values) == 3 and found.views[0].rows[1].verdict == "worse"
    assert any("gelu/seed3" in note for note in found.notes)


@pytest.mark.parametrize(
    ("part", "change", "word"),
    [
        ("summary", {"protocol": {**sweep()[0]["summary"]["protocol"], "stride": 64}}, "stride 64"),
        ("provenance", {"compile": True}, "compile True"),
        ("provenance", {"threads": 8}, "threads 8"),
    ],
)
def test_an_odd_run_is_left_out_by_name(part, change, word):
    found = study(altered(sweep(), "gelu/seed2", **{part: change}))
    assert len(found.gaps) == 1 and found.gaps[0].startswith("gelu/seed2 left out") and word in found.gaps[0]
    gelu = found.views[0].rows[1]
    assert len(gelu.variant.done) == 2 and gelu.verdict == "incomplete"


def test_between_equally_common_ways_the_baselines_counts():
    records = sweep({"gelu": 2.7, "baseline": 2.5})
    for r in records[:3]:
        r["provenance"] = r["provenance"] | {"threads": 2}
    found = study(records)
    assert [gap.split()[0] for gap in found.gaps] == ["gelu/seed0", "gelu/seed1", "gelu/seed2"]


def test_seeds_of_different_code_and_dead_swaps_are_told():
    records = altered(sweep(), "gelu/seed1", provenance={"code_sha256": "99999999"})
    assert any("same code" in note and "99999999: gelu/seed1" in note for note in study(records).notes)
    other = sweep()
    for r in other[3:6]:
        r["provenance"] = r["provenance"] | {"code_sha256": "99999999"}
    assert any("1a2b3c4d5e: baseline, layernorm" in note and "99999999: gelu." in note for note in study(other).notes)
    for r in records:
        r["summary"]["final_bpb"] = 2.5
    assert any("Does this swap change anything?" in note for note in study(records).notes)


def lr_grid(rates=(3e-4, 1e-3, 3e-3), best=1e-3, postnorm_best=3e-4):
    records = []
    for rate in rates:
        off = {swap: abs(np.log(rate / (postnorm_best if swap == "postnorm" else best))) * 0.1 for swap in FINALS}
        records += sweep({swap: end + off[swap] for swap, end in FINALS.items()}, **{"train.lr": rate})
    return records


def test_an_lr_grid_is_compared_at_the_shared_and_at_each_own_rate():
    shared, own = study(lr_grid()).views
    at = [{row.variant.swap: row.variant.axes["train.lr"] for row in view.rows} for view in (shared, own)]
    assert set(at[0].values()) == {1e-3}
    assert at[1] == {**dict.fromkeys(FINALS, 1e-3), "postnorm": 3e-4}
    worse = [next(row.final.mean for row in view.rows if row.variant.swap == "postnorm") for view in (shared, own)]
    assert worse[1] == pytest.approx(0.26, abs=0.03) and worse[0] > worse[1] + 0.1


def test_a_best_rate_on_the_grids_edge_is_told_unless_the_next_rate_diverged():
    assert [note for note in study(lr_grid()).notes if "edge" in note and "Post-norm" in note]
    records = lr_grid()
    for r in records:
        if r["swap"] == "postnorm" and r["axes"]["train.lr"] < 1e-3:
            r["state"] = "diverged"
    found = study(records)
    assert not [note for note in found.notes if "edge" in note]
    rows = {row.variant.name: row for row in found.views[1].rows}
    assert rows["postnorm,train.lr=0.001"].verdict == "worse"


def test_other_axes_are_compared_at_equal_values():
    records = sweep(**{"model.n_layer": 2}) + sweep({k: v - 0.3 for k, v in FINALS.items()}, **{"model.n_layer": 4})
    found = rows(records)
    assert found["gelu,model.n_layer=4"].baseline.name == "baseline,model.n_layer=4"
    assert found["gelu,model.n_layer=4"].final.mean == pytest.approx(0.19, abs=0.05)


def test_no_baseline_and_no_records():
    found = study(sweep({"gelu": 2.7, "learned": 3.0}))
    assert not found.views[0].swaps and "no baseline" in found.notes[0]
    with pytest.raises(UserError, match="no records"):
        study([])


def claims(records):
    found = published.checks(study(records), POST)
    return {(check.label.split()[0], check.claim): check for check in found}


def test_the_posts_differences_come_from_its_own_numbers():
    runs = POST["runs"]
    assert published.differences("gelu", 1000, runs) == [0.086, 0.106]
    assert published.differences("gelu", 4000, runs) == [-0.007, 0.003]
    assert published.tolerance({"swap": "layernorm", "tolerance": "seeds"}, runs) == 0.032


def test_at_another_scale_only_directions_are_compared():
    found = claims(sweep(sd=0.01))
    assert found["GELU", "behind at step 1,000 and step 2,000"].verdict == "agrees"  # one test of ours, one line
    assert found["GELU", "behind at step 1,000 and step 2,000"].step == 800
    assert len([claim for label, claim in found if label == "GELU" and "behind" in claim]) == 1
    assert found["GELU", "ties within 0.01 at step 4,000"].verdict == "cannot tell"
    opposite = claims(sweep({**FINALS, "gelu": 2.3}))
    assert opposite["GELU", "behind at step 1,000 and step 2,000"].verdict == "disagrees"
    assert claims(sweep(seeds=(0, 1)))["Post-norm", "behind at the end"].verdict == "cannot tell"


def test_at_the_posts_scale_the_same_step_is_compared():
    posted = POST["runs"]["bpb"]
    records = sweep(dict.fromkeys(posted, 2.0), seeds=range(4), steps=(1000, 2000, 3000, 4000), scale="blog", sd=1e-3)
    for r in records:
        wobble = r["seed"] * 1e-3 + (r["swap"] == "gelu") * (r["seed"] % 2) * 1e-3
        r["evals"] = [[step, bpb + wobble] for step, bpb in posted[r["swap"]][0].items()]
        r["summary"]["final_bpb"] = r["evals"][-1][1]
    found = claims(records)
    assert len(found) == 7 and {check.verdict for check in found.values()} == {"agrees"}
    assert found["GELU", "behind at step 2,000"].ours.mean == pytest.approx(0.0245, abs=1e-6)
    assert found["GELU", "behind at step 2,000"].step == 2000
    for r in records:
        r["evals"] = [[step, bpb + (r["swap"] == "gelu") * 0.05] for step, bpb in r["evals"]]
    assert claims(records)["GELU", "ties within 0.01 at step 4,000"].verdict == "disagrees"


def test_new_records_beside_the_committed_ones():
    lines = earlier.beside(sweep(), sweep({**FINALS, "gelu": 2.55}, draw=5)[:9], "committed")
    assert len(lines) == 3 and "committed: worse" in lines[1] and "GELU" in lines[1]
    other = sweep(draw=5)
    for r in other:
        r["summary"]["protocol"] = r["summary"]["protocol"] | {"text_sha256": "0"}
    lines = earlier.beside(sweep(), other, "before")
    assert len(lines) == 5 and all("not comparable: evaluation text_sha256 0 here" in line for line in lines)
    assert not any("committed" in line for line in lines) and earlier.beside(sweep(), sweep(), "before") == []


def test_another_precision_or_device_is_compared_and_told():
    other = sweep(draw=5)
    for r in other:
        r["summary"]["protocol"] = r["summary"]["protocol"] | {"precision": "bf16"}
        r["provenance"] = r["provenance"] | {"device": "cuda", "precision": "bf16"}
    for line in earlier.beside(sweep(), other, "committed"):
        assert "not comparable" not in line and "device cuda here, cpu there" in line
        assert "precision bf16 here, fp32 there" in line


def test_seeds_with_other_knobs_do_not_share_a_mean():
    found = study(altered(sweep(), "gelu/seed2", config={"train.batch_size": 99}))
    assert found.gaps == ["gelu/seed2 left out: train.batch_size 99 where its variant has absent"]
    assert found.views[0].rows[1].verdict == "incomplete"
    assert not study(altered(sweep(), "gelu/seed2", config={"train.log_every": 99, "wandb.mode": "x"})).gaps
    two = altered(sweep(seeds=(0, 1)), "gelu/seed0", config={"train.lr": 3e-3})  # one against one: the baseline's way
    assert [gap.split()[0] for gap in study(two).gaps] == ["gelu/seed0"]


def test_what_a_swap_sets_besides_its_seam_is_told():
    records = sweep(**{"eval.stride": 64})
    for r in records:
        r["config"]["train.warmup"] = 100 if r["swap"] == "gelu" else 0
        r["config"]["model.n_layer"] = 2 if r["swap"] == "learned" else 4
    found = study(records)
    assert not found.gaps and found.views[0].rows[1].verdict == "worse"
    assert [note.partition(":")[2] for note in found.notes] == [
        " differs from the baseline also in train.warmup 0 -> 100.",
        " differs from the baseline also in model.n_layer 4 -> 2.",
    ]


def test_what_the_seam_turns_is_no_other_knob_nor_another_way_of_measuring():
    records = sweep()
    for r in records:
        if r["swap"] == "gelu":
            r["about"] = r["about"] | {"seam": "symbols"}
            r["config"] |= {"text.kind": "bpe", "model.mlp": "gelu"}
            r["summary"]["protocol"]["kind"] = "bpe"
        else:
            r["config"] |= {"text.kind": "char", "model.mlp": "swiglu"}
    found = study(records)
    assert not found.gaps and found.views[0].rows[1].verdict == "worse"
    assert [note.partition(":")[2] for note in found.notes] == [
        " differs from the baseline also in model.mlp swiglu -> gelu."
    ]


def test_a_resumed_seeds_mixed_code_is_not_cut_to_its_first_half():
    old, new = "a" * 64, "b" * 64
    records = sweep()
    for r in records:
        r["provenance"] |= {"code_sha256": old}
    records = altered(records, "gelu/seed1", provenance={"code_sha256": f"{old} then {new}"})
    assert any("aaaaaaaa then bbbbbbbb: gelu/seed1" in note for note in study(records).notes)


@pytest.mark.parametrize("key", ["torch", "python", "cpu"])
def test_machines_that_may_differ_are_told(key):
    found = study(altered(sweep(), "gelu/seed1", provenance={key: "other"}))
    assert not found.gaps and any(f"the same {key}" in n and "other: gelu/seed1" in n for n in found.notes)


def test_a_fact_that_is_new_in_the_records_is_compared_by_itself():
    found = study(altered(sweep(), "gelu/seed1", provenance={"fused": True}))
    assert found.gaps == ["gelu/seed1 left out: fused True where the table has absent"]


def protocol(records, **changes):
    for r in records:
        r["summary"]["protocol"] = r["summary"]["protocol"] | changes
    return records


def test_a_swept_protocol_is_equal_within_its_group_only():
    small = protocol(sweep(**{"model.context": 64}), context=64, stride=64)
    found = study(small + sweep(**{"model.context": 128}))
    assert not found.gaps and [row.verdict for row in found.views[0].swaps] == ["worse", "better", "worse", "worse"] * 2
    assert any("evaluation context 64 / 128" in note for note in found.notes)
    odd = study(
        altered(small, "gelu,model.context=64/seed0", provenance={"threads": 9}) + sweep(**{"model.context": 128})
    )
    assert [gap.split()[0] for gap in odd.gaps] == ["gelu,model.context=64/seed0"]


def test_a_swap_that_can_never_be_compared_is_no_part_of_the_family():
    records = sweep()
    view = study(records[:-3] + protocol(records[-3:], stride=64)).views[0]
    assert view.rows[-1].verdict == "not comparable" and len(view.family) == 3
    assert view.rows[1].p == pytest.approx(rows(records[:-3])["gelu"].p)
    missing = study(records[:-3] + [r | {"state": "missing"} for r in records[-3:]]).views[0]
    assert missing.rows[-1].verdict == "incomplete" and len(missing.family) == 4


def weak(sure: bool):
    """A study whose GELU is behind by its own interval, and by Holm's correction only where `sure`."""
    records = sweep(sd=0, steps=(1000, 2000, 3000, 4000), scale="blog")
    apart = dict.fromkeys(FINALS, (0, 0.1, 0.2)) | {"learned": (0.07, 0.1, 0.13), "baseline": (0, 0, 0)}
    if sure:
        apart["learned"] = (0.1, 0.1001, 0.1002)
    for r in records:
        r["evals"] = [[step, 2.5 + apart[r["swap"]][r["seed"]]] for step, _ in r["evals"]]
        r["summary"]["final_bpb"] = r["evals"][-1][1]
    return records


@pytest.mark.parametrize("sure", [False, True])
def test_a_claim_about_the_last_step_has_the_word_of_the_table(sure):
    found = study(weak(sure))
    row = next(row for row in found.views[0].rows if row.variant.swap == "learned")
    check = claims(weak(sure))["Learned", "behind at step 4,000"]
    assert row.final.low > 0 and row.verdict == ("worse" if sure else "not distinguishable")
    assert check.verdict == ("agrees" if sure else "cannot tell")
    assert sure or "not distinguishable, as in the table" in check.why


def test_a_tie_at_every_checkpoint_is_tested_at_every_checkpoint():
    records = sweep(sd=1e-3)
    same = {r["seed"]: r["evals"] for r in records if r["swap"] == "baseline"}
    for bump, expected in ((0.0, ("agrees", 800)), (0.2, ("disagrees", 200))):
        for r in records:
            if r["swap"] == "layernorm":
                wobble = r["seed"] * 1e-3
                r["evals"] = [[step, bpb + wobble * step / 800 + bump * (step == 200)] for step, bpb in same[r["seed"]]]
                r["summary"]["final_bpb"] = r["evals"][-1][1]
        check = claims(records)["LayerNorm", "ties within 0.032 at every checkpoint"]
        assert (check.verdict, check.step) == expected
