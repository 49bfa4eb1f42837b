"""The figures exist, hold what they should, keep to their frame, and come out the same again."""

from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest

from analysis import against, figures, plots
from analysis.study import study
from config import UserError
from records import FINALS, altered, sweep

FIGURES = {"curves": plots.curves, "forest": plots.forest, "steps": plots.steps}
MANY = {
    "baseline": 2.55,
    **{f"swap {n} of {n} with a label of many words $x_": 2.55 + 0.02 * (n - 4) for n in range(12)},
}
SHAPES = {
    "one swap, two seeds": lambda: sweep({"baseline": 2.55, "gelu": 2.74}, seeds=(0, 1)),
    "four swaps": sweep,
    "twelve swaps, eight seeds": lambda: sweep(MANY, seeds=range(8)),
    "one seed": lambda: sweep(seeds=(0,)),
    "one checkpoint": lambda: sweep(steps=(20,)),
    "no spread": lambda: sweep(dict.fromkeys(FINALS, 2.5), sd=0),
    "missing seeds": lambda: altered(
        altered(sweep(), "gelu/seed1", state="diverged", evals=[[0, 6.6], [200, None]]),
        "baseline/seed2",
        state="failed",
    ),
    "rates": lambda: sweep(**{"train.lr": 1e-3}) + sweep(**{"train.lr": 3e-3}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_figures_exist_are_not_empty_and_nothing_is_cut_off(shape, tmp_path):
    made = figures.draw(study(SHAPES[shape]()), tmp_path)
    assert [path.name for path in made] == ["curves.png", "forest.png", "steps.png"]
    for path in made:
        pixels = matplotlib.image.imread(path)[..., :3]
        dark = (pixels < 0.9).any(-1)
        assert pixels.shape[1] >= 1100 and 0.005 < dark.mean() < 0.5
        edge = np.concatenate([dark[:3].ravel(), dark[-3:].ravel(), dark[:, :3].ravel(), dark[:, -3:].ravel()])
        assert not edge.any()
        assert path.with_suffix(".svg").read_text().rstrip().endswith("</svg>")


def test_the_same_records_give_the_same_svg(tmp_path):
    found = study(sweep({"baseline": 2.5, "gelu": 2.7}))
    for name, figure in FIGURES.items():
        for path in (tmp_path / "a.svg", tmp_path / "b.svg"):
            with matplotlib.rc_context(figures.STYLE):
                figures.save(figure(found), [path])
        one, two = ((tmp_path / f"{which}.svg").read_bytes() for which in "ab")
        assert one == two and b"<dc:date>" not in one, name


def test_every_swap_and_its_verdict_stand_beside_the_marks():
    found = study(sweep())
    for name, figure in FIGURES.items():
        words = " ".join(text.get_text() for text in figure(found).findobj(matplotlib.text.Text))
        for row in found.views[0].swaps:
            assert row.variant.label in words and row.verdict in words, name
    assert "+0.18" in words or "+0.19" in words


def test_a_label_is_text_and_no_markup_in_a_figure(tmp_path):
    label = 'a <script>x</script> & "b" ]]> \x1b'
    records = [r | {"about": r["about"] | {"label": label}} if r["swap"] == "gelu" else r for r in sweep()]
    figures.draw(study(records), tmp_path)
    for path in tmp_path.glob("*.svg"):
        tree = ElementTree.parse(path)
        assert not [node for node in tree.iter() if node.tag.endswith("script")]


def test_more_swaps_than_fit_are_told():
    records = sweep({"baseline": 2.5, **{f"s{n}": 2.5 + 0.01 * n for n in range(plots.MOST + 2)}}, seeds=(0, 1))
    figure = plots.curves(study(records))
    assert f"The {plots.MOST} of {plots.MOST + 2} swaps that differ most" in figure.get_suptitle().replace("\n", " ")


def test_without_numbers_there_is_no_figure_and_an_old_one_goes(tmp_path):
    found = study(sweep())
    figures.draw(found, tmp_path)
    nothing = study([r | {"state": "failed"} for r in sweep()])
    for figure in FIGURES.values():
        with pytest.raises(UserError, match="to draw"):
            figure(nothing)
    assert figures.draw(nothing, tmp_path) == [] and list(tmp_path.iterdir()) == []


def test_a_sweep_without_a_baseline_has_its_curves(tmp_path):
    assert [p.name for p in figures.draw(study(sweep({"gelu": 2.7, "learned": 3.0})), tmp_path)] == ["curves.png"]


def test_against_the_other_swept_value_each_swap_is_a_line(tmp_path):
    records = [
        r for depth in (2, 4, 8) for r in sweep({"baseline": 2.5, "gelu": 2.5 + depth / 20}, **{"model.n_layer": depth})
    ]
    found = study(records)
    assert "axis.png" in [path.name for path in figures.draw(found, tmp_path)]
    ax = against.axis(found).axes[0]
    means = ax.containers[0].lines[0].get_ydata()
    assert means == pytest.approx([row.final.mean for row in found.views[0].swaps]) and means[0] < means[1] < means[2]
    assert ax.get_xlabel() == "model.n_layer"


def test_against_the_cache_each_variant_is_a_point():
    records = sweep({"baseline": 2.5, "gelu": 2.6})
    with pytest.raises(UserError):
        against.cache(study(records))
    for r in records:
        r["summary"] |= {"kv_bytes_per_token": 768 if r["swap"] == "gelu" else 1536}
    found = study(records)
    ax = against.cache(found).axes[0]
    assert [c.lines[0].get_xdata().item() for c in ax.containers] == [1536, 768]
    words = " ".join(" ".join(text.get_text() for text in ax.texts).split())
    assert all(row.variant.label in words for row in found.views[0].rows)
