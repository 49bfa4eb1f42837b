"""What generation keeps of a text: bytes a token and a sequence, and how many sequences fit on a GPU.

python -m calculators.kv_cache                                       the post's six lines, and the figure
python -m calculators.kv_cache --model llama-3-70b --context 128k    a published model; several with several --model
python -m calculators.kv_cache --config config.json --gpu 80 --tp 2  a Hugging Face configuration
python -m calculators.kv_cache --layers 32 --heads 32 --kv-heads 8 --head-size 128

Bits of the cache are without the scales that 8- and 4-bit formats add. A GPU's memory is in GiB (a card sold as
"80 GB" has about that), activations and the framework not counted. A split over --tp GPUs divides the weights evenly;
key/value heads are divided where there are enough and repeated where not, a latent is on every GPU.
"""

import argparse
import math
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from calculators import counts, flags, hf, post
from calculators.models import Model, entries, key, make, published
from config import UserError

KIB, GIB = 1024, 1024**3
FLAGS = {  # flag -> field of Model
    "layers": "n_layer", "width": "d_model", "heads": "n_head", "kv_heads": "n_kv_head", "head_size": "head_size",
    "latent": "kv_rank", "rotated": "rotated", "windows": "windows",
}  # fmt: skip


@dataclass(frozen=True)
class Terms:
    """What is asked of every model."""

    context: int = 4096  # tokens
    batch: int = 1  # sequences
    bits: int = 16  # of a number in the cache
    state_bits: int = 32  # of a number in a recurrent layer's state
    weight_bits: int = 16
    gpu: float = 80.0  # GiB
    tp: int = 1  # GPUs that share one model


@dataclass(frozen=True)
class Extra:
    """Layers without a growing cache, and the weights, of a model that is given by flags alone."""

    attention_every: int = 1  # one layer in so many is attention, the others keep a fixed state
    state: int = 0  # numbers of that state
    parameters: float | None = None


def answer(m: Model, terms: Terms, extra: Extra, notes: list[str]) -> dict:
    """Bytes for all GPUs together, and sequences that fit. Raises UserError for a split that cannot be."""
    layers = [layer_bytes(m, terms, extra, number) for number in range(m.n_layer)]
    token, fixed = sum(layer[0] for layer in layers), sum(layer[2] for layer in layers)
    whole = sequence_bytes(m, terms, extra)
    ratio = counts.ungrouped(m) / counts.kept(m)
    found = {
        "model": m.label, "context": terms.context, "bits": terms.bits, "bytes_per_token": token,
        "bytes_per_token_past_windows": sum(a_token for a_token, window, _ in layers if window is None),
        "bytes_per_token_ungrouped": token * ratio, "state_bytes": fixed, "bytes_per_sequence": whole,
        "bytes_per_sequence_ungrouped": (whole - fixed) * ratio + fixed, "bytes_per_batch": terms.batch * whole,
    }  # fmt: skip
    return found | beside_weights(m, terms, extra, whole - fixed, fixed) | {"notes": notes}


def sequence_bytes(m: Model, terms: Terms, extra: Extra) -> float:
    layers = [layer_bytes(m, terms, extra, number) for number in range(m.n_layer)]
    return sum(a_token * min(terms.context, window or terms.context) + state for a_token, window, state in layers)


def layer_bytes(m: Model, terms: Terms, extra: Extra, number: int) -> tuple[float, int | None, float]:
    """(bytes a token, window, bytes of the fixed state) of one layer."""
    mixer, window = m.mixers[number % len(m.mixers)], m.windows[number % len(m.windows)]
    if (number + 1) % extra.attention_every:
        return 0.0, None, extra.state * terms.state_bits / 8
    if mixer != "attention":
        return 0.0, None, counts.state(m, mixer) * terms.state_bits / 8
    return counts.kept(m) * terms.bits / 8, window, 0.0


def beside_weights(m: Model, terms: Terms, extra: Extra, sequence: float, fixed: float) -> dict:
    """Sequences beside the weights, on `tp` GPUs. Without a number of parameters nothing is said of it."""
    share = split(m, terms.tp)
    per_gpu = sequence * share + fixed / terms.tp
    found = {"gpu_gib": terms.gpu, "gpus": terms.tp, "bytes_per_sequence_per_gpu": per_gpu}
    parameters = extra.parameters or (counts.size(m).total if m.vocab else None)
    if parameters is None:
        return found | {"parameters": None, "weight_bytes": None, "sequences": None}
    weights = parameters * terms.weight_bits / 8
    room = terms.gpu * GIB - weights / terms.tp
    sequences = max(0, math.floor(room / per_gpu)) if per_gpu else None
    return found | {"parameters": int(parameters), "weight_bytes": weights, "sequences": sequences}


def split(m: Model, tp: int) -> float:
    """The share of the cache that one of `tp` GPUs holds. Raises UserError where heads do not divide."""
    if m.n_head % tp:
        raise UserError(f"--tp {tp}: does not divide the {m.n_head} query heads of {m.label}")
    if m.kv_rank:
        return 1.0
    if m.n_kv_head % tp and tp % m.n_kv_head:
        raise UserError(f"--tp {tp}: neither divides the {m.n_kv_head} key/value heads of {m.label} nor is a multiple")
    return max(m.n_kv_head // tp, 1) / m.n_kv_head


def said(found: dict) -> str:
    """An answer in words."""
    lines = [found["model"]]
    ratio = found["bytes_per_token_ungrouped"] / found["bytes_per_token"] if found["bytes_per_token"] else 1
    rest = f"; every query head with its own: {kib(found['bytes_per_token_ungrouped'])}, {ratio:.3g} times"
    lines.append(f"  per token     {kib(found['bytes_per_token'])} at {found['bits']} bit" + rest * (ratio != 1))
    if found["bytes_per_token_past_windows"] != found["bytes_per_token"]:
        lines.append(f"                {kib(found['bytes_per_token_past_windows'])} once the windows are full")
    if found["state_bytes"]:
        lines.append(f"  fixed state   {gib(found['state_bytes'])} a sequence, however long")
    rest = f"; every query head with its own: {gib(found['bytes_per_sequence_ungrouped'])}" * (ratio != 1)
    lines.append(f"  per sequence  {found['context']:,} tokens: {gib(found['bytes_per_sequence'])}{rest}")
    if found["bytes_per_batch"] != found["bytes_per_sequence"]:
        lines.append(f"  batch         {gib(found['bytes_per_batch'])}")
    gpus = f"{found['gpus']} GPU{'s' * (found['gpus'] > 1)} of {found['gpu_gib']:g} GiB"
    if found["parameters"] is None:
        lines.append(f"  {gpus}: not computed without --parameters, or --model, or --config")
    else:
        weights = f"{found['parameters'] / 1e9:.2f}B parameters, {gib(found['weight_bytes'])}"
        lines.append(f"  {gpus}: {weights}; beside them {sequences(found)}")
    return "\n".join([*lines, *(f"  note: {note}" for note in found["notes"])])


def sequences(found: dict) -> str:
    if found["sequences"] is None:
        return "any number of sequences: nothing is kept of a token"
    if found["weight_bytes"] / found["gpus"] > found["gpu_gib"] * GIB:
        return "nothing: the weights alone do not fit"
    return f"{found['sequences']:,} sequences of {found['context']:,} tokens"


def kib(number: float) -> str:
    return f"{short(number / KIB, 5)} KiB ({short(number / 1000)} KB)"


def gib(number: float) -> str:
    return f"{short(number / GIB)} GiB ({short(number / 1e9)} GB)"


def short(number: float, digits: int = 3) -> str:
    """So many digits, or all of a larger whole number: never a power of ten."""
    return f"{number:,.0f}" if number >= 10 ** (digits - 1) else f"{number:.{digits}g}"


def chosen(options: argparse.Namespace) -> list[tuple[Model, list[str]]]:
    """The models that the flags name, each with what was assumed. Raises UserError."""
    given = {field: getattr(options, flag) for flag, field in FLAGS.items() if getattr(options, flag) is not None}
    found = [(replace(published(name), **given), told(name)) for name in options.model]
    found += [hf.read(options.config, given)] if options.config else []
    if found:
        return found
    needed = ("layers", "heads", *(() if options.latent else ("kv_heads",)), "head_size")
    missing = [f"--{flag.replace('_', '-')}" for flag in needed if getattr(options, flag) is None]
    if missing:
        raise UserError(f"{', '.join(missing)}: needed where neither --model nor --config is given")
    plain = {"label": "by flags", "d_model": 0, "n_kv_head": given.get("n_head"), **given}
    return [(make(plain, "flags"), [])]


def told(name: str) -> list[str]:
    """What its entry says that could not be read, or differs between two sources."""
    return [group["note"] for group in entries()[key(name)]["fields"] if "note" in group]


def parser() -> flags.Parser:
    p = flags.Parser(prog="python -m calculators.kv_cache", description="What a key/value cache holds.")
    p.add_argument("--model", action="append", default=[], help="a name in data/published_models.yaml; may be repeated")
    p.add_argument("--config", type=Path, help="a Hugging Face config.json")
    p.add_argument("--list", action="store_true", help="the names of the published models")
    for flag in ("layers", "width", "heads", "kv-heads", "head-size", "latent", "rotated"):
        p.add_argument(f"--{flag}", type=flags.whole, help="of the model, in place of what it has")
    p.add_argument("--windows", type=flags.window_pattern, help="tiled over the layers: 1024,1024,full")
    p.add_argument("--attention-every", type=flags.whole, default=Extra.attention_every, help="hybrid: 1 in N layers")
    p.add_argument("--state", type=flags.whole, default=Extra.state, help="numbers that each of the others keeps")
    p.add_argument("--parameters", type=flags.whole, help="of the model, where they are not counted here")
    p.add_argument("--context", type=flags.tokens, default=Terms.context, help="tokens; 128k is 131,072")
    p.add_argument("--batch", type=flags.whole, default=Terms.batch, help="sequences")
    p.add_argument("--bits", type=int, choices=(4, 8, 16, 32), default=Terms.bits, help="of a number in the cache")
    p.add_argument("--state-bits", type=int, choices=(8, 16, 32), default=Terms.state_bits, help="of a fixed state's")
    p.add_argument("--weight-bits", type=int, choices=(4, 8, 16, 32), default=Terms.weight_bits, help="of a weight")
    p.add_argument("--gpu", type=flags.positive, default=Terms.gpu, help="its memory in GiB")
    p.add_argument("--tp", type=flags.whole, default=Terms.tp, help="GPUs that share one model")
    p.add_argument("--json", action="store_true", help="the numbers as JSON")
    p.add_argument("--figure", type=Path, help="cache against context, written as PATH.svg and PATH.png")
    return p


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 2 for a mistake of the person who typed it."""
    return flags.run(parser(), compute, arguments)


def compute(options: argparse.Namespace) -> int:
    silent = vars(parser().parse_args([]))
    if all(value == silent[name] for name, value in vars(options).items() if name not in ("json", "figure")):
        return show_post(options)
    if options.list:
        print("\n".join(entries()))
        return 0
    terms, extra = (kind(**{key: getattr(options, key) for key in asdict(kind())}) for kind in (Terms, Extra))
    models = chosen(options)
    found = [answer(m, terms, extra, notes) for m, notes in models]
    if options.figure:
        draw(models, terms, extra, options.figure)
    if options.json:
        flags.print_json({"models": found})
    else:
        print("\n".join(map(said, found)))
    return 0


def show_post(options: argparse.Namespace) -> int:
    """The post's lines, and the figure of the models that it sets side by side."""
    path = options.figure or Path("results/calculators/kv_cache")
    draw([(published(name), []) for name in post.SIDE_BY_SIDE], Terms(), Extra(), path)
    if options.json:
        flags.print_json(post.memory_numbers())
    else:
        print("\n".join([*post.memory_lines(), "", *post.memory_rest(), "", f"Figure: {path}.svg, {path}.png"]))
    return 0


def draw(models: list[tuple[Model, list[str]]], terms: Terms, extra: Extra, path: Path) -> None:
    """Bytes of one sequence against its context, 1,024 to 1M tokens, for each model."""
    from calculators import figures  # matplotlib is slow to load, and most answers need no figure

    contexts = [1024 * 2**n for n in range(11)]
    lines = {m.label: [sequence_bytes(m, replace(terms, context=T), extra) for T in contexts] for m, _ in models}
    figures.cache(lines, contexts, terms.gpu, terms.bits, path)


if __name__ == "__main__":
    sys.exit(main())
