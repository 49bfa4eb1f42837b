"""python -m families check PATH: a checkpoint folder in gpt.py and in transformers, side by side, in float32."""

import argparse
import sys
from pathlib import Path

import torch

from cli import in_one_line
from families.checking import difference, greedy
from families.weights import configuration, load

TOLERANCE = 1e-4  # of logits, in units of the largest where that is above 1
SYMBOLS, NEXT = 48, 16  # of a random prompt, and behind it


def main(line: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m families", description=__doc__)
    parser.add_argument("command", choices=["check"])
    parser.add_argument("path", type=Path, help="a folder with config.json and *.safetensors")
    return in_one_line(compare, parser.parse_args(line).path)


def compare(folder: Path) -> int:
    """Prints the largest difference of logits. Returns 1 where it is above the tolerance."""
    config = configuration(folder)
    from transformers import AutoModelForCausalLM

    model = load(folder, torch.float32)
    other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocab_size, (2, min(SYMBOLS, model.context - NEXT)), generator=draw)
    with torch.no_grad():
        found, largest = difference(other, model, ids), model(ids).abs().max().item()
    same = torch.equal(greedy(model, ids, NEXT), greedy(lambda ids: other(ids).logits, ids, NEXT))
    equal = found <= TOLERANCE * max(1, largest)
    print(
        f"{config.model_type}: logits differ by at most {found:.1e}, the largest is {largest:.3g}: "
        f"{'equal' if equal else 'NOT EQUAL'}; the next {NEXT} symbols are {'the same' if same else 'NOT the same'}"
    )
    return 0 if equal and same else 1


if __name__ == "__main__":
    sys.exit(main())
