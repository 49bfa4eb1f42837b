"""Gradients and activations before the first step, layer by layer: what post-norm needs its warm-up for.

python -m experiments.gradients [--depths 2,8,32] [--seeds 0,1,2] [--scale grid] [--out results/gradients]

Xiong et al. 2020 (arXiv:2002.04745) predict: with post-norm the gradient of the last layer's MLP does not shrink with
depth, and falls towards the first layer; with pre-norm it shrinks as 1 / sqrt(depth), and is even over the layers. They
start from Xavier's weights and inputs of size 1; both that start and the project's own are measured.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import nn

import gpt
from analysis.figures import STYLE, save
from analysis.formats import markdown_table
from analysis.plots import WIDTH
from calculators import flags
from cli import compose
from config import Config
from engine.plan import Freezer
from parts.linear import STD
from storage import files
from text import corpus
from training import machine
from training.objective import Objective

WIRINGS = {"prenorm": "Pre-norm", "postnorm": "Post-norm", "sandwich": "Sandwich norm", "output_norm": "Output norm"}
DEPTHS = (2, 4, 8, 16, 32, 64)
QUANTITIES = {
    "gradient": "gradient norm of\nthe MLP's last matrix",
    "activation": "rms of the stream\nbehind the layer",
}
STARTS = {"ours": "our initial weights", "xavier": "Xavier's weights"}


def main(arguments: list[str] | None = None) -> int:
    parser = flags.Parser(prog="python -m experiments.gradients", description=__doc__.splitlines()[0])
    parser.add_argument("--depths", type=numbers, default=DEPTHS, help="layers, as 2,8,32")
    parser.add_argument("--seeds", type=numbers, default=(0, 1, 2))
    parser.add_argument("--scale", default="grid", help="width and batch are those of conf/scale/<this>")
    parser.add_argument("--out", type=Path, default=Path("results/gradients"))
    return flags.run(parser, run, arguments)


def numbers(text: str) -> tuple[int, ...]:
    found = tuple(int(part) for part in text.split(","))
    if min(found) < 0:
        raise ValueError(text)
    return found


def run(options: argparse.Namespace) -> int:
    freezer, rows = Freezer(), []
    for wiring in WIRINGS:
        for depth in options.depths:
            for seed in options.seeds:
                knobs = [f"scale={options.scale}", f"model.wiring={wiring}", f"model.n_layer={depth}", f"seed={seed}"]
                config = freezer.freeze(compose(knobs)).config
                rows += [row for start in STARTS for row in measure(config, freezer.text(config), start)]
    text = report(rows, options)
    options.out.mkdir(parents=True, exist_ok=True)
    files.save(options.out / "rows.json", files.to_json({"scale": options.scale, "rows": rows}, indent=None))
    with matplotlib.rc_context(STYLE):
        save(draw(rows), [options.out / "gradients.svg", options.out / "gradients.png"])
    files.save(options.out / "report.md", text.encode())
    print(text)
    return 0


def measure(config: Config, text: corpus.Corpus, start: str) -> list[dict]:
    """One row a layer: gradient and activation on the first batch of a run, nothing trained."""
    machine.settle(config.machine)
    model = gpt.GPT(config.model, text.vocab_size).init(config.seed)
    if start == "xavier":
        xavier(model, torch.Generator().manual_seed(config.seed))
    outputs = []
    for block in model.blocks:
        block.register_forward_hook(lambda block, given, stream: outputs.append(stream.detach()))
    inputs, targets = corpus.batch(text.train, config.seed, 0, config.train.batch_size, config.model.context)
    Objective(model, config.train)(inputs, targets)["total"].backward()
    return [
        {
            "start": start,
            "wiring": config.model.wiring,
            "depth": config.model.n_layer,
            "seed": config.seed,
            "layer": layer,
            "gradient": block.mlp.down.weight.grad.norm().item(),
            "activation": stream.square().mean().sqrt().item(),
        }
        for layer, (block, stream) in enumerate(zip(model.blocks, outputs, strict=True), 1)
    ]


def xavier(model: gpt.GPT, generator: torch.Generator) -> None:
    """The start of the paper: Glorot & Bengio 2010 for each matrix, an embedded input of size 1."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight, generator=generator)
    model.embedding.scale = 1 / STD


def means(rows: list[dict], quantity: str) -> dict[tuple, list[float]]:
    """(start, wiring, depth) -> the quantity of each layer, the mean over the seeds."""
    found = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[row["start"], row["wiring"], row["depth"]][row["layer"]].append(row[quantity])
    return {key: [fmean(layers[layer]) for layer in sorted(layers)] for key, layers in found.items()}


def report(rows: list[dict], options: argparse.Namespace) -> str:
    gradients, activations = (means(rows, quantity) for quantity in QUANTITIES)
    heads = [
        "wiring",
        "start",
        "layers",
        "gradient, first layer",
        "gradient, last",
        "last to first",
        "rms of the stream",
    ]
    cells = []
    for key, layers in sorted(gradients.items(), key=lambda item: list(STARTS).index(item[0][0])):
        start, wiring, depth = key
        shown = (layers[0], layers[-1], layers[-1] / layers[0], activations[key][-1])
        cells.append([WIRINGS[wiring], STARTS[start], str(depth), *(f"{value:.3g}" for value in shown)])
    seeds = ", ".join(map(str, options.seeds))
    return "\n\n".join(
        [
            "# Gradients before the first step",
            "![Gradient and stream of each layer, by wiring and depth](gradients.png)",
            markdown_table((heads, cells)),
            f"Norm of the loss's gradient with respect to the MLP's last matrix, and root mean square of the stream "
            f"behind the last layer, on a run's first batch at `{options.scale}` size; means over seeds {seeds}. "
            f"Our initial weights are GPT-2's: a spread of 0.02, divided by sqrt(2 layers) for what writes to the "
            f"stream. Xavier's, with an input of size 1, are the start that the paper speaks of.",
        ]
    )


def draw(rows: list[dict]) -> Figure:
    """Columns: wirings. Lines: depths. From the first layer at the left to the last at the right."""
    figure = Figure(figsize=(WIDTH * 1.2, 8), layout="constrained")
    panels = [(start, quantity) for start in STARTS for quantity in QUANTITIES]
    grid = figure.subplots(len(panels), len(WIRINGS), sharex=True, sharey="row")
    depths, found = sorted({row["depth"] for row in rows}), {name: means(rows, name) for name in QUANTITIES}
    for line, (start, quantity) in zip(grid, panels, strict=True):
        for (its, wiring, depth), layers in found[quantity].items():
            if its == start:
                ax = line[list(WIRINGS).index(wiring)]
                x = [n / (depth - 1) if depth > 1 else 1.0 for n in range(depth)]
                shade = matplotlib.colormaps["viridis"](0.9 * depths.index(depth) / max(1, len(depths) - 1))
                ax.plot(x, layers, color=shade, lw=1.4, marker="o" if depth <= 8 else "", ms=3, label=str(depth))
        line[0].set_ylabel(f"{QUANTITIES[quantity]}\n{STARTS[start]}", fontsize=8)
        line[0].set_yscale("log")
        line[0].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for ax, words in zip(grid[0], WIRINGS.values(), strict=True):
        ax.set_title(words, loc="left", weight="bold")
    for ax in grid[-1]:
        ax.set_xticks([0, 1], ["first", "last"])
    figure.legend(*grid[0, 0].get_legend_handles_labels(), title="layers", loc="outside right center", frameon=False)
    figure.suptitle("Before the first step, each layer from the first to the last.", fontsize=9, x=0.01, ha="left")
    return figure


if __name__ == "__main__":
    sys.exit(main())
