"""What the files of a run were when it ended, so that later damage to any of them is noticed.

python -m storage.seal [RUNS_DIR]     compares every file of every ended run, weights too, and names what differs
"""

import hashlib
import sys
from pathlib import Path

from storage.files import load, to_json, write_whole

SEAL = "seal.json"
SEALED = ("config.yaml", "provenance.json", "metrics.jsonl", "status.json", "model.pt")
# Looked at by its size alone, where nobody asks for more: `make results` reads thousands of folders. It may be gone:
# people throw weights away to save room.
LARGE = ("model.pt",)


def seal(folder: Path, summary: bytes) -> None:
    """Writes seal.json: size and sha256 of each file, and of the summary.json that is to come. Raises OSError."""
    found = {name: facts((folder / name).read_bytes()) for name in SEALED}
    write_whole(folder / SEAL, to_json(found | {"summary.json": facts(summary)}))


def facts(data: bytes) -> dict:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def broken(folder: Path, thorough: bool = False) -> str:
    """The first file of an ended run that is not as the run left it, in words; "" where there is none, or no seal.

    Raises ValueError: the seal itself is damaged.
    """
    for name, noted in load(folder / SEAL).items():
        try:
            if name in LARGE and not (folder / name).exists():
                same = True
            elif name in LARGE and not thorough:
                same = (folder / name).stat().st_size == noted["bytes"]
            else:
                same = facts((folder / name).read_bytes()) == noted
        except (OSError, TypeError, KeyError):
            same = False
        if not same:
            return f"{name} is damaged: not as the run left it"
    return ""


def main(arguments: list[str]) -> int:
    """Exit status 1 where a run is damaged."""
    damaged = 0
    for path in sorted(Path(*(arguments or ["runs"])).glob(f"*/*/*/seed*/{SEAL}")):
        try:
            problem = broken(path.parent, thorough=True)
        except ValueError as error:
            problem = str(error)
        if problem:
            damaged += 1
            print(f"{path.parent}: {problem}")
    print(f"{damaged} damaged")
    return int(damaged > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
