"""A scaling law of one's own: the records of the sweep `scaling`, fitted with calculators/fit.py.

python -m experiments.scaling [--results results] [--scale cpu] [--bootstrap 200] [--out results/scaling]

N: parameters without the tables. D: symbols trained on, repeats counted. Loss: bits per byte of the whole dev set at
the end of a run. In nats per symbol E, A and B are another multiple of the same, alpha and beta are equal.
"""

import argparse
import sys
from pathlib import Path

from calculators import flags
from experiments.scaling import figure, ladders, words
from storage import files


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 2 for a mistake of the person who typed it."""
    p = flags.Parser(prog="python -m experiments.scaling", description=__doc__.splitlines()[0])
    p.add_argument("--results", type=Path, default=Path("results"), help="where <scale>/scaling*/records.jsonl lie")
    p.add_argument("--scale", default="cpu", help="of the sweep")
    p.add_argument("--bootstrap", type=flags.whole, default=200, help="resamplings behind the intervals")
    p.add_argument("--out", type=Path, default=Path("results/scaling"))
    return flags.run(p, answer, arguments)


def answer(options: argparse.Namespace) -> int:
    found = ladders.read(options.results / options.scale, options.bootstrap)
    text = words.report(found, options.out)
    for ladder in found:
        files.save(ladders.points_file(options.out, ladder), ladders.points_csv(ladder))
    figure.draw(found, options.out / ladders.SWEEP)
    files.save(options.out / "report.md", text.encode())
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
