"""A sweep as `python train.py -m` runs it; the last line says what the driver itself used, its jobs not counted.

python -m bench.driver -m OVERRIDES
"""

import json
import resource
import sys

import cli


def main() -> int:
    try:
        code = cli.main()
    except SystemExit as end:  # Hydra's way out of a sweep
        code = end.code or 0
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime}))
    return code


if __name__ == "__main__":
    sys.exit(main())
