"""The scaling-law calculator prints the post's lines, recovers known constants, and refuses points that say nothing."""

import json

import numpy as np
import pytest

from calculators import chinchilla, fit, laws
from test_calculators_cache import refused, tool

POST = """\
Hoffmann, as printed  tokens per parameter at C = 1e21 / 1e23 / 1e25 FLOPs:  50.1 /  78.2 / 122.1
Hoffmann, unrounded   tokens per parameter at C = 1e21 / 1e23 / 1e25 FLOPs:  34.0 /  50.7 /  75.7
Besiroglu refit       tokens per parameter at C = 1e21 / 1e23 / 1e25 FLOPs:  21.6 /  19.2 /  17.1

Llama 3 8B: 1,875 tokens per parameter, C = 7.2e+23 FLOPs
  Hoffmann, as printed  same compute: optimal  36B on  3.4T tokens, loss 1.923 vs the 8B's 1.949; same loss: a 26B model with 0.50x the 8B's training compute
  Hoffmann, unrounded   same compute: optimal  45B on  2.7T tokens, loss 1.911 vs the 8B's 1.944; same loss: a 29B model with 0.40x the 8B's training compute
  Besiroglu refit       same compute: optimal  81B on  1.5T tokens, loss 1.968 vs the 8B's 2.022; same loss: a 34B model with 0.18x the 8B's training compute
curve Hoffmann, as printed: 2:2.0266 4:1.9801 8:1.9485 16:1.9299 32:1.9228 64:1.9264 128:1.9405 256:1.9654
curve Hoffmann, unrounded: 2:2.0266 4:1.9777 8:1.9435 16:1.9221 32:1.9119 64:1.9121 128:1.9223 256:1.9426
curve Besiroglu refit: 2:2.1169 4:2.0622 8:2.0221 16:1.9941 32:1.9766 64:1.9688 128:1.9703 256:1.9813
"""  # noqa: E501
TRUE = laws.fits()["besiroglu"]


def answers(capsys, *arguments) -> list[dict]:
    assert chinchilla.main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["answers"]


def runs(count: int = 120, noise: float = 0.0) -> fit.Points:
    draw = np.random.default_rng(3)
    N, D = (
        np.exp(draw.uniform(np.log(4e7), np.log(2e10), count)),
        np.exp(draw.uniform(np.log(5e8), np.log(4e11), count)),
    )
    return fit.Points(N, D, TRUE.loss(N, D) * np.exp(noise * draw.standard_normal(count)))


def written(path, points: fit.Points, header: str = "params,tokens,loss") -> str:
    rows = zip(points.N, points.D, points.loss, strict=True)
    path.write_text("\n".join([header, *(",".join(f"{x!r}" for x in map(float, row)) for row in rows)]) + "\n")
    return str(path)


def test_without_an_argument_the_posts_lines(tmp_path):
    done = tool("chinchilla", tmp_path)
    assert done.returncode == 0 and done.stdout.startswith(POST), done.stderr
    assert (tmp_path / "results/calculators/chinchilla.png").stat().st_size > 10_000


@pytest.mark.parametrize("law", laws.fits().values(), ids=list(laws.fits()))
def test_the_optimum_is_one(law):
    N, D = law.optimal(1e22)
    assert pytest.approx(1e22) == 6 * N * D
    assert all(law.loss(N * k, D / k) > law.loss(N, D) for k in (0.9, 1.1))
    assert law.tokens(law.loss(N, D), N) == pytest.approx(D)
    assert laws.same_loss(law, law.loss(N, D)) == pytest.approx(1e22, rel=1e-6)


def test_commands(capsys):
    (one,) = answers(capsys, "optimal", "--flops", "1e23", "--fit", "besiroglu")
    assert round(one["tokens_per_parameter"], 1) == 19.2
    all_three = answers(capsys, "overtrain", "--params", "8e9", "--tokens", "15e12")
    assert [round(one["same_loss"]["share_of_flops"], 2) for one in all_three] == [0.5, 0.4, 0.18]


def test_what_is_served_makes_the_best_model_smaller():
    loss = TRUE.loss(*TRUE.optimal(1e23))
    none, some, many = (laws.lifetime(TRUE, loss, served) for served in (0, 1e12, 1e14))
    assert pytest.approx(TRUE.optimal(1e23)[0], rel=1e-6) == none.N and none.N > some.N > many.N
    assert TRUE.loss(some.N, some.D) == pytest.approx(loss)
    total = some.training + some.serving
    assert total < some.optimal_total
    for k in (0.97, 1.03):
        N = some.N * k
        assert 6 * N * TRUE.tokens(loss, N) + 2 * N * some.served > total


def test_the_fit_recovers_what_the_points_were_made_of(tmp_path, capsys):
    path = written(tmp_path / "points.csv", runs())
    assert chinchilla.main(["fit", path, "--json", "--bootstrap", "5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["converged"] and found["points"] == 120
    for name in fit.CONSTANTS:
        assert found[name] == pytest.approx(getattr(TRUE, name), rel=2e-3), name
    assert found["tokens_per_parameter"]["1e23"] == pytest.approx(TRUE.ratio(1e23), rel=0.01)
    assert found["rounded"]["alpha"] == 0.35
    (path := tmp_path / "law.json").write_text(json.dumps(found))
    (one,) = answers(capsys, "optimal", "--flops", "1e23", "--fit", path)
    assert one["params"] == pytest.approx(TRUE.optimal(1e23)[0], rel=0.01)


def test_with_noise_and_a_few_wild_points_the_intervals_hold_the_truth():
    points = runs(200, noise=0.003)
    points.loss[:4] *= 1.3
    found = fit.fit(points, draws=40)
    assert found.converged
    assert (found.law.alpha, found.law.beta) == pytest.approx((TRUE.alpha, TRUE.beta), abs=0.02)
    low, high = found.interval(found.draws[:, 3])
    assert low < TRUE.alpha < high and high - low < 0.1


def test_the_gradient_is_the_slope():
    points = runs(30, noise=0.01)
    objective, p = fit.Objective(points), np.array([0.5, 0.3, -0.2, 0.4, 0.3])
    _, gradient = objective.with_gradient(p, np.ones(30))
    for k, step in enumerate(1e-6 * np.eye(5)):
        slope = (objective.value(p + step) - objective.value(p - step)) / 2e-6
        assert gradient[k] == pytest.approx(slope, rel=1e-4)


def test_the_highest_losses_can_be_left_out(tmp_path, capsys):
    points = runs(60)
    points.loss[[7, 20]] = 9.0
    assert len(fit.leave_out(points, 2)) == 58 and fit.leave_out(points, 2).loss.max() < 9
    path = written(tmp_path / "points.csv", points)
    assert chinchilla.main(["fit", path, "--leave-out", "2", "--bootstrap", "2"]) == 0
    words = capsys.readouterr().out
    assert words.startswith("58 points") and "rounded to two digits" in words and "C^0.51" in words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no points"), ("params,tokens\n1,2\n", "no column loss"),
        ("params,tokens,loss\n1e8,2e9,\n", "line 2, loss: no value"),
        ("params,tokens,loss\n1e8,2e9,x\n", "x is no number"), ("params,tokens,loss\n1e8,-2e9,3\n", "above 0"),
        ("params,tokens,loss\n" + "1e8,2e9,3\n" * 4, "4 points for 5 constants"),
        ("params,tokens,loss\n" + "".join(f"1e8,{k}e9,{4 - k / 9}\n" for k in range(1, 9)), "params is 1e+08 in all 8"),
        ("params,tokens,loss\n" + "".join(f"{k}e8,{2 * k}e9,{4 - k / 9}\n" for k in range(1, 9)), "fixed power"),
    ],
)  # fmt: skip
def test_points_that_say_too_little_are_refused(text, words, tmp_path, capsys):
    path = tmp_path / "points.csv"
    path.write_text(text)
    assert words in refused(capsys, chinchilla.main, "fit", path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["optimal", "--flops", "0"], "--flops"), (["optimal", "--flops", "many"], "--flops"),
        (["optimal", "--flops", "1e22", "--fit", "besiroglou"], "did you mean besiroglu"),
        (["overtrain", "--params", "8e9"], "--tokens"), (["optimize"], "invalid choice"),
        (["serve", "--served", "1e12"], "--loss, or --flops"),
        (["serve", "--served", "1", "--loss", "1.5"], "no model"), (["fit", "none.csv"], "none.csv"),
        (["fit"], "points"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(line, words, capsys):
    assert words in refused(capsys, chinchilla.main, *line)


def test_counting_without_tables_explains_kaplan():
    sizes = np.geomspace(768, 1.5e9, 200)
    exponents = [laws.exponent_without_tables(law, sizes, vocab=32_000, aspect=39.2) for law in laws.fits().values()]
    assert all(0.7 < exponent < 0.8 for exponent in exponents)
    large = laws.exponent_without_tables(TRUE, np.geomspace(1e12, 1e15, 50), vocab=32_000, aspect=39.2)
    assert large == pytest.approx(TRUE.exponent, abs=0.01)
