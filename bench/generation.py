"""Measures greedy generation beside transformers' Llama of the same size: milliseconds a symbol, by length.

python -m bench.generation [SCALE]      needs transformers: pip install -c constraints.txt ".[bench]"

One thread, float32, random weights, one text that begins with BOS. Contenders take turns; median of the rounds.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from tabulate import tabulate

import gpt
from bench.cases import Sizes
from bench.learners import llama_config
from cli import in_one_line
from config import GenerateConfig, ModelConfig
from generate import chooser, written
from text.symbols import BOS

LENGTHS, ROUNDS = (32, 128, 512, 1024), 3
BEGIN = torch.tensor([BOS])


def main() -> int:
    return in_one_line(bench, sys.argv[1] if len(sys.argv) > 1 else "cpu")


def bench(scale: str) -> int:
    with TemporaryDirectory(prefix="oneswap-") as folder:
        config = Sizes(Path(folder)).job(f"scale={scale}").config
    torch.set_num_threads(1)
    size = config.model, config.run.vocab_size
    model, greedy = gpt.GPT(*size).init(0).eval(), chooser(GenerateConfig(temperature=0), reserved=1)
    contenders = {"ours": partial(written, model, BEGIN, choose=greedy), "transformers Llama": llama(*size)}
    rows = {name: [] for name in contenders}
    for length in LENGTHS:
        rounds = [{name: seconds(write, length) for name, write in contenders.items()} for _ in range(ROUNDS)]
        for name, row in rows.items():
            row.append(1000 * median(its[name] for its in rounds) / length)
    table = [[name, *row] for name, row in rows.items()]
    print(tabulate(table, ["ms a symbol", *map(str, LENGTHS)], floatfmt=".2f", tablefmt="github"))
    return 0


def seconds(write: Callable, count: int) -> float:
    started = time.perf_counter()
    write(count=count)
    return time.perf_counter() - started


def llama(c: ModelConfig, vocab_size: int) -> Callable:
    """By its own `generate`, which is asked for no less than `count` symbols."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(llama_config(c, vocab_size)).eval()
    options = {"do_sample": False, "use_cache": True, "eos_token_id": None, "pad_token_id": BOS}
    return lambda count: model.generate(BEGIN[None], min_new_tokens=count, max_new_tokens=count, **options)


if __name__ == "__main__":
    sys.exit(main())
