"""Parameters by part against 12 L D^2, and the context at which attention's own work overtakes the MLP's.

python -m calculators.sizing                                    the published models, the 8/3 rule
python -m calculators.sizing --model palm-540b --context 8k     one of them; --config config.json: of Hugging Face
python -m calculators.sizing --vocab 96 scale=blog swap=gelu    any configuration of gpt.py, built without weights

Work is FLOPs of the forward pass for one token: 2 a weight of the MLP, and for attention the scores and weighted sums
alone (projections are weights), the mean over a causal text, half the context. Recurrent layers do not grow with the
context and are left out. Of gpt.py: half of what its layers say of the whole context.
"""

import argparse
import sys
from pathlib import Path

import torch
from tabulate import tabulate

import cli
from calculators import counts, flags, hf
from calculators.models import Model, entries, published
from config import Config, UserError
from engine.plan import typed
from gpt import GPT
from training import cost

LONGEST = 2**40  # tokens; what does not cross before is said never to


def of_model(m: Model) -> dict:
    """The sizes of a published model or configuration file."""
    size = counts.size(m)
    parts = {part: count for part, count in size.parts.items() if count}
    work = {"attention": lambda T: counts.attention_work(m, T), "mlp": counts.mlp_work(m)}
    return facts(m.label, parts, size.active, m.n_layer, m.d_model, m.vocab, m.tied, size.tables, work) | {
        "published": m.published
    }


def of_run(overrides: list[str], vocab: int) -> dict:
    """The sizes of what `python train.py OVERRIDES` would train on a text of `vocab` symbols. Raises UserError."""
    c = configuration(overrides)
    with torch.device("meta"):
        model = GPT(c.model, vocab)
    parts, found = run_parts(model), cost.cost(model, c.model.context)
    mixers = [block.attention for block in model.blocks]
    mlp = sum(p.numel() for block in model.blocks for p in block.mlp.parameters())
    work = {"attention": lambda T: sum(a.flops(T) for a in mixers) / 2, "mlp": 2 * (mlp - found.total + found.active)}
    label = " ".join(overrides) or "the defaults of config.py"
    rest = (
        c.model.n_layer,
        c.model.d_model,
        vocab,
        "unembedding" not in parts,
        found.total - found.non_embedding,
        work,
    )
    return facts(label, parts, found.active, *rest) | {"published": ""}


def configuration(overrides: list[str]) -> Config:
    """The configuration of one run. Raises UserError, in one line, for what Hydra refuses."""
    try:
        return typed(cli.compose(overrides))
    except cli.MISTAKES as error:
        raise UserError(cli.one_line(error)) from None


def run_parts(model: GPT) -> dict[str, int]:
    """Parameters by the first name inside a block, or inside the model; a shared one counts where it is met first."""
    parts: dict[str, int] = {}
    for name, p in model.named_parameters():
        words = [word for word in name.split(".") if not word.isdigit()]
        part = words[1] if words[0] == "blocks" else words[0]
        part = "norms" if "norm" in part else part
        parts[part] = parts.get(part, 0) + p.numel()
    return parts


def facts(label, parts, active, n_layer, d_model, vocab, tied, tables, work) -> dict:
    total = sum(parts.values())
    block, table = total - tables, vocab * d_model
    crossing = cross(work["attention"], work["mlp"])
    return {
        "model": label, "layers": n_layer, "width": d_model, "vocab": vocab, "parts": parts, "total": total,
        "active": active, "non_embedding": block, "twelve_l_d2": 12 * n_layer * d_model**2,
        "ratio_to_12_l_d2": block / (12 * n_layer * d_model**2), "tied": tied,
        "share_tied": table / (block + table), "share_untied": 2 * table / (block + 2 * table),
        "crossing": crossing, "crossing_in_widths": crossing and crossing / d_model, "work": work,
    }  # fmt: skip


def cross(attention, mlp: float) -> int | None:
    """The first context, in tokens, at which attention's own work is the MLP's; None where it never is."""
    low, high = 1, 1
    while attention(high) < mlp:
        low, high = high, high * 2
        if high > LONGEST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if attention(middle) >= mlp else (middle, high)
    return high


def said(found: dict, context: int) -> str:
    """One model in words."""
    count, work = found["total"], found["work"]
    head = f"{found['model']}: {count:,} parameters" + f" (published: {found['published']})" * bool(found["published"])
    lines = [head, *(f"  {part:12s} {n:>19,}  {n / count:6.1%}" for part, n in found["parts"].items())]
    if found["active"] != count:
        lines.append(f"  active       {found['active']:>19,}  {found['active'] / count:6.1%}")
    lines.append(
        f"  12 L D^2     {found['twelve_l_d2']:>19,}  without tables {found['non_embedding']:,}: "
        f"{found['ratio_to_12_l_d2']:.3f} times"
    )
    state = "tied" if found["tied"] else "untied"
    shares = f"{found['share_tied']:.1%} of all if tied, {found['share_untied']:.1%} if not"
    lines.append(f"  the table of {found['vocab']:,} tokens: {shares} (here {state})")
    own, mlp = work["attention"](context), work["mlp"]
    lines.append(f"  FLOPs a token at {context:,}: attention's own {own:.3g}, MLP {mlp:.3g}; {crossing_words(found)}")
    return "\n".join(lines)


def crossing_words(found: dict) -> str:
    if found["crossing"] is None:
        return "attention never overtakes it"
    return f"equal at {found['crossing']:,} = {found['crossing_in_widths']:.1f} D"


def table(answers: list[dict]) -> str:
    heads = [
        "model",
        "parameters",
        "active",
        "published",
        "12 L D²",
        "ratio",
        "tables tied",
        "untied",
        "crossing",
        "/ D",
    ]
    rows = [
        [
            found["model"], f"{found['total'] / 1e9:.2f}B", f"{found['active'] / 1e9:.2f}B", found["published"],
            f"{found['twelve_l_d2'] / 1e9:.2f}B", f"{found['ratio_to_12_l_d2']:.2f}", f"{found['share_tied']:.1%}",
            f"{found['share_untied']:.1%}", f"{found['crossing']:,}" if found["crossing"] else "never",
            f"{found['crossing_in_widths']:.1f}" if found["crossing"] else "",
        ]
        for found in answers
    ]  # fmt: skip
    align = ["left", "right", "right", "left", *["right"] * 6]
    return tabulate(rows, heads, tablefmt="simple", disable_numparse=True, colalign=align)


def rule() -> list[str]:
    """The 8/3 rule, and where T = 8 D comes from, computed at the width of Llama 3 8B."""
    m = published("llama-3-8b")
    D = m.d_model
    two, three, own = 2 * D * 4 * D, 3 * D * round(8 * D / 3), counts.matrices(m, m.mlp_width)
    layer = 2 * two  # FLOPs of an MLP of 8 D^2 weights
    T = cross(lambda T: 2 * 2 * D * counts.seen(T, None), layer)
    return [
        f"8/3 rule at D = {D:,}: two matrices 4 D wide have {two / 1e6:.1f}M weights, three 8/3 D wide "
        f"{three / 1e6:.1f}M: 8 D² both.",
        f"{m.label} takes {m.mlp_width:,} = {m.mlp_width / D:.1f} D: {own / 1e6:.0f}M a layer.",
        f"Attention's own work meets an MLP of 8 D² weights at T = {T:,} = {T / D:.0f} D.",
    ]


def parser() -> flags.Parser:
    p = flags.Parser(prog="python -m calculators.sizing", description="Parameters by part, and work by part.")
    p.add_argument("--model", action="append", default=[], help="a name in data/published_models.yaml; may be repeated")
    p.add_argument("--config", type=Path, help="a Hugging Face config.json")
    p.add_argument("--vocab", type=flags.whole, help="symbols of a configuration of gpt.py; in a run the text decides")
    p.add_argument("--context", type=flags.tokens, default=4096, help="at which work is told; 8k is 8,192")
    p.add_argument("--json", action="store_true", help="the numbers as JSON")
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="knobs of config.py")
    return p


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 2 for a mistake of the person who typed it."""
    p = parser()
    return cli.in_one_line(lambda: compute(p.parse_intermixed_args(arguments)))


def compute(options: argparse.Namespace) -> int:
    answers, notes = [of_model(published(name)) for name in options.model], []
    if options.config:
        m, notes = hf.read(options.config, {})
        answers.append(of_model(m))
    if options.overrides or options.vocab:
        if not options.vocab:
            raise UserError("--vocab: needed for a configuration of gpt.py; in a run the text decides it")
        answers.append(of_run(options.overrides, options.vocab))
    every = not answers
    answers = answers or [of_model(published(name)) for name in entries()]
    if options.json:
        for found in answers:
            work = found.pop("work")
            found["flops"] = {"context": options.context, "mlp": work["mlp"]}
            found["flops"]["attention"] = work["attention"](options.context)
        flags.print_json({"models": answers, "notes": notes})
    elif every:
        print("\n".join([table(answers), "", *rule()]))
    else:
        print("\n".join([*(said(found, options.context) for found in answers), *(f"  note: {n}" for n in notes)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
