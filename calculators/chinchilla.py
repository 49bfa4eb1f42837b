"""How large a model should be, and on how much data, for a budget of compute: fitted scaling laws at work.

python -m calculators.chinchilla                                              the post's lines, and the figure
python -m calculators.chinchilla optimal --flops 1e22 --fit besiroglu         the best size for a budget
python -m calculators.chinchilla overtrain --params 8e9 --tokens 15e12        a trained model beside it
python -m calculators.chinchilla serve --params 8e9 --tokens 15e12 --served 1e13    with inference counted
python -m calculators.chinchilla fit points.csv                               a law of your own points

Every answer is as good as its fit: DeepMind's text and tokenizer, models up to 16B. Without --fit, under all of them.
"""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from calculators import fit as fitting
from calculators import flags, post
from calculators.laws import SERVE, TRAIN, Law, fit_named, fits, lifetime, require_reachable, same_loss
from config import UserError

FIGURE = Path("results/calculators/chinchilla")


def laws_of(options: argparse.Namespace) -> list[Law]:
    """One fit, by name or as the JSON that `fit --json` wrote, or all. Raises UserError."""
    if options.fit is None:
        return list(fits().values())
    if options.fit.endswith(".json"):
        plain = flags.read_json(Path(options.fit))
        if missing := [name for name in fitting.CONSTANTS if not isinstance(plain.get(name), float | int)]:
            raise UserError(f"{options.fit}: no {', '.join(missing)}; `fit points.csv --json` writes them")
        return [Law(**{name: plain[name] for name in fitting.CONSTANTS}, label=options.fit)]
    return [fit_named(options.fit)]


def size(number: float) -> str:
    """A count with a size word: 36B, 3.4T, 350M."""
    for unit, word in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{word}"
    return f"{number:.3g}"


def show(options: argparse.Namespace, answers: list[dict], lines: list[str]) -> int:
    flags.print_json({"answers": answers}) if options.json else print("\n".join(lines))
    return 0


def optimal(options: argparse.Namespace) -> int:
    answers, lines = [], [f"C = {options.flops:.3g} FLOPs, all of them for training"]
    for law in laws_of(options):
        N, D = law.optimal(options.flops)
        ratio, loss = D / N, law.loss(N, D)
        answers.append({"fit": law.label, "params": N, "tokens": D, "tokens_per_parameter": ratio, "loss": loss})
        lines.append(f"  {law.label:21s} {size(N)} on {size(D)} tokens, {ratio:.1f} a parameter, loss {loss:.3f}")
    return show(options, answers, lines)


def overtrain(options: argparse.Namespace) -> int:
    params, tokens = options.params, options.tokens
    spent, answers = TRAIN * params * tokens, []
    lines = [f"{size(params)}: {tokens / params:,.4g} tokens per parameter, C = {spent:.1e} FLOPs"]
    for law in laws_of(options):
        (N, D), loss = law.optimal(spent), law.loss(params, tokens)
        least = same_loss(law, loss)
        answers.append(
            {
                "fit": law.label, "flops": spent, "loss": loss, "tokens_per_parameter": tokens / params,
                "same_compute": {"params": N, "tokens": D, "loss": law.loss(N, D)},
                "same_loss": {"params": law.optimal(least)[0], "flops": least, "share_of_flops": least / spent},
            }
        )  # fmt: skip
        lines.append(f"  {law.label:21s} {post.beside(law, params, tokens)}")
    return show(options, answers, lines)


def serve(options: argparse.Namespace) -> int:
    """The size that is cheapest over training and all tokens served, for the loss that the flags state."""
    answers, lines = [], [f"{size(options.served)} tokens served over a lifetime, {SERVE} N FLOPs each"]
    for law in laws_of(options):
        loss = wanted(law, options)
        require_reachable(law, loss)
        found = lifetime(law, loss, options.served)
        total = found.training + found.serving
        answers.append({"fit": law.label, **asdict(found), "total": total, "saved": 1 - total / found.optimal_total})
        lines.append(
            f"  {law.label:21s} loss {loss:.3f}: {size(found.N)} on {size(found.D)} tokens, "
            f"{found.D / found.N:,.4g} a parameter; {total:.3g} FLOPs, {found.serving / total:.0%} of them served; "
            f"compute-optimal {size(found.optimal_N)}, {found.optimal_total:.3g} FLOPs"
        )
    return show(options, answers, lines)


def wanted(law: Law, options: argparse.Namespace) -> float:
    """The loss to reach: stated, or of a budget's best model, or of a model after its tokens. Raises UserError."""
    ways = [options.loss is not None, options.flops is not None, bool(options.params and options.tokens)]
    if sum(ways) != 1 or bool(options.params) != bool(options.tokens):
        raise UserError("serve: the loss to reach is needed in one way: --loss, or --flops, or --params with --tokens")
    if options.loss is not None:
        return options.loss
    return law.loss(*law.optimal(options.flops)) if options.flops else law.loss(options.params, options.tokens)


def fit(options: argparse.Namespace) -> int:
    points = fitting.read(options.points)
    if options.leave_out:
        points = fitting.leave_out(points, options.leave_out)
    found = fitting.fit(points, options.bootstrap, options.seed)
    flags.print_json(numbers(found)) if options.json else print(words(found))
    return 0


def numbers(found: fitting.Fit) -> dict:
    law, drawn = found.law, found.laws()
    intervals = {name: found.interval(found.draws[:, k]) for k, name in enumerate(fitting.CONSTANTS)}
    intervals["exponent"] = found.interval([one.exponent for one in drawn])
    ratios = {f"{C:.0e}".replace("e+", "e"): law.ratio(C) for C in post.BUDGETS}
    short = fitting.rounded(law)
    return {
        **{name: getattr(law, name) for name in fitting.CONSTANTS}, "intervals": intervals,
        "converged": found.converged, "gradient": found.gradient, "objective": found.objective,
        "starts": fitting.STARTS, "agreeing": found.agreeing, "points": len(found.points),
        "bootstrap": len(found.draws), "bootstrap_with_optimum": len(drawn),
        "exponent": law.exponent, "tokens_per_parameter": ratios,
        "rounded": {"alpha": short.alpha, "beta": short.beta,
                    "tokens_per_parameter": {key: short.ratio(float(key)) for key in ratios}},
    }  # fmt: skip


def words(found: fitting.Fit) -> str:
    law, drawn, p = found.law, found.laws(), found.points
    ends = [f"{size(values.min())} to {size(values.max())}" for values in (p.N, p.D)]
    lines = [f"{len(p)} points: {ends[0]} parameters, {ends[1]} tokens, loss {p.loss.min():.3f} to {p.loss.max():.3f}"]
    lost = len(found.draws) - len(drawn)
    without = f", {lost} of them without an optimum" * bool(lost)
    lines.append(f"95% intervals of {len(found.draws)} resamplings of the points{without}:")
    for k, name in enumerate(fitting.CONSTANTS):
        low, high = found.interval(found.draws[:, k])
        lines.append(f"  {name:5s} {getattr(law, name):9.5g}  [{low:.5g}, {high:.5g}]")
    state = "converged" if found.converged else "NOT CONVERGED, do not use it"
    lines.append(
        f"{state}: gradient {found.gradient:.1e} a point; {found.agreeing} of {fitting.STARTS} starts end here"
    )
    low, high = found.interval([one.exponent for one in drawn])
    lines.append(f"compute-optimal parameters grow as C^{law.exponent:.3f} [{low:.3f}, {high:.3f}]")
    low, high = (min(p.N * p.D) * TRAIN, max(p.N * p.D) * TRAIN)
    for C in post.BUDGETS:
        ends = found.interval([one.ratio(C) for one in drawn])
        far = "" if low <= C <= high else ", outside of the points' own compute"
        lines.append(f"  {law.ratio(C):8.1f} [{ends[0]:.1f}, {ends[1]:.1f}] tokens per parameter at C = {C:.0e}{far}")
    short = fitting.rounded(law)
    lines.append(f"with its exponents rounded to two digits, alpha {short.alpha:.2f} and beta {short.beta:.2f}:")
    told = (f"{short.ratio(C):.1f} ({short.ratio(C) / law.ratio(C):.2f} times)" for C in post.BUDGETS)
    return "\n".join([*lines, f"  {' / '.join(told)} tokens per parameter at the same three"])


def show_post(options: argparse.Namespace) -> int:
    from calculators import figures  # matplotlib is slow to load, and the other answers need no figure

    figures.loss_against_size(list(fits().values()), *post.EIGHT_B, options.figure)
    if options.json:
        flags.print_json(post.law_numbers())
    else:
        print("\n".join([*post.law_lines(), "", f"Figure: {options.figure}.svg, {options.figure}.png"]))
    return 0


def parser() -> flags.Parser:
    p = flags.Parser(prog="python -m calculators.chinchilla", description="Model size and data for a budget.")
    p.add_argument("--json", action="store_true", help="the numbers as JSON")
    p.add_argument("--figure", type=Path, default=FIGURE, help="written as PATH.svg and PATH.png")
    p.set_defaults(answer=show_post)
    commands = p.add_subparsers(metavar="COMMAND", parser_class=flags.Parser)

    def command(answer, *numbers: str, **optional: str) -> flags.Parser:
        sub = commands.add_parser(answer.__name__, description=answer.__doc__)
        sub.set_defaults(answer=answer)
        sub.add_argument("--json", action="store_true", help="the numbers as JSON")
        for name in numbers:
            sub.add_argument(f"--{name}", type=flags.positive, required=True)
        for name, told in optional.items():
            sub.add_argument(f"--{name}", type=flags.positive, help=told)
        return sub

    told = "the loss to reach is that of this "
    laws = [command(optimal, "flops"), command(overtrain, "params", "tokens")]
    laws.append(command(serve, loss="to reach", flops=f"{told}budget", params=f"{told}model", tokens="and its tokens"))
    laws[-1].add_argument("--served", type=flags.at_least_zero, required=True, help="tokens over the lifetime")
    for sub in laws:
        sub.add_argument("--fit", help=f"{', '.join(fits())}, or a file of `fit --json`; all where it is not given")
    own = command(fit)
    own.add_argument("points", type=Path, help="CSV with the columns params, tokens, loss")
    own.add_argument("--leave-out", type=flags.whole, help="so many points of the highest losses")
    own.add_argument("--bootstrap", type=flags.whole, default=200, help="resamplings behind the intervals")
    own.add_argument("--seed", type=int, default=0, help="of the resampling")
    return p


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 2 for a mistake of the person who typed it."""
    return flags.run(parser(), lambda options: options.answer(options), arguments)


if __name__ == "__main__":
    sys.exit(main())
