"""Measures greedy generation beside transformers' Llama of the same weights: milliseconds a symbol, by length.

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
from torch import nn

from bench.__main__ import require_hf
from bench.cases import Sizes
from bench.learners import llama_config
from cli import in_one_line
from config import GenerateConfig, UserError
from families import from_hf
from generate import chooser, written
from text.symbols import BOS

LENGTHS, ROUNDS = (32, 128, 512, 1024), 3
BEGIN = torch.tensor([BOS])


def main() -> int:
    return in_one_line(bench, sys.argv[1] if len(sys.argv) > 1 else "cpu")


def bench(scale: str) -> int:
    require_hf()
    from transformers import LlamaForCausalLM

    with TemporaryDirectory(prefix="oneswap-") as folder:
        config = Sizes(Path(folder)).job(f"scale={scale}").config
    torch.set_num_threads(1)
    torch.manual_seed(0)
    peer = LlamaForCausalLM(llama_config(config.model, config.run.vocab_size)).eval()
    greedy = chooser(GenerateConfig(temperature=0), reserved=0)
    ours = partial(written, from_hf(peer).eval(), BEGIN, choose=greedy)
    contenders = {"ours": ours, "transformers Llama": partial(theirs, peer)}
    rows = {name: [] for name in contenders}
    if not torch.equal(*(write(count=LENGTHS[0]) for write in contenders.values())):
        raise UserError("ours and transformers do not write the same text")
    for length in LENGTHS:
        rounds = [{name: seconds(write, length) for name, write in contenders.items()} for _ in range(ROUNDS)]
        for name, row in rows.items():
            row.append(1000 * median(its[name] for its in rounds) / length)
    table = [[name, *row] for name, row in rows.items()]
    print(tabulate(table, ["ms a symbol", *map(str, LENGTHS)], floatfmt=".2f", tablefmt="github"))
    return 0


def seconds(write: Callable, count: int) -> float:
    """Of the processor, not of the clock: on one thread the same, unless other work takes its turns."""
    started = time.process_time()
    write(count=count)
    return time.process_time() - started


def theirs(model: nn.Module, count: int):
    """By its own `generate`, which is asked for no less than `count` symbols."""
    options = {"do_sample": False, "use_cache": True, "eos_token_id": None, "pad_token_id": BOS}
    seen = torch.ones_like(BEGIN[None])
    return model.generate(BEGIN[None], attention_mask=seen, min_new_tokens=count, max_new_tokens=count, **options)[0]


if __name__ == "__main__":
    sys.exit(main())
