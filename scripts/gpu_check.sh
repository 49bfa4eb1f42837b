#!/usr/bin/env bash
# Everything that only a GPU can show, in one go, within 8 minutes on a fresh machine without a network:
# fast paths equal plain ones, packed seeds, the bench, and the grid of the post.
#
#   scripts/gpu_check.sh OUT [WHEELS]
#
# OUT gets results/, the logs and summary.md. WHEELS is a folder of wheels for packages that are not installed here:
#   pip wheel -w WHEELS -c constraints.txt hydra-core omegaconf ...
# The text has to be there: python data/prepare.py canterbury, on a machine with a network.
# DEVICE=cpu walks the same path at smoke size, so that the script is known to work where no GPU is.
# PEER=<checkout of nanoGPT> puts its runs beside ours in the bench.
set -euo pipefail
OUT=$(mkdir -p "${1:?usage: scripts/gpu_check.sh OUT [WHEELS]}" && cd "$1" && pwd)
WHEELS=${2:+$(cd "$2" && pwd)}
cd "$(dirname "$0")/.."
export DEVICE=${DEVICE:-cuda}
PY=${PY:-python3}

if [ -n "$WHEELS" ]; then
  "$PY" -m venv --system-site-packages "$OUT/venv"
  PY=$OUT/venv/bin/python
  # The torch that came with the machine stays: constraints.txt names another.
  "$PY" - >"$OUT/requirements.txt" <<'END'
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print("\n".join(project["dependencies"] + project["optional-dependencies"]["dev"]))
END
  "$PY" -m pip install -q --no-index --find-links "$WHEELS" -r "$OUT/requirements.txt" ||
    { echo "WHEELS=$WHEELS lacks a package"; exit 2; }
fi
case $DEVICE in
  cuda) SCALE=blog SEEDS=0,1 QUICK= ;;
  cpu) SCALE=smoke SEEDS=0,1 QUICK=--quick ;;
  *) echo "DEVICE=$DEVICE: must be cuda or cpu"; exit 2 ;;
esac
"$PY" -c "import sys, torch; sys.exit('$DEVICE' == 'cuda' and not torch.cuda.is_available())" ||
  { echo "DEVICE=cuda: torch sees no GPU here. DEVICE=cpu walks the same path at smoke size"; exit 2; }

ROWS=() FAILED=0
# step NAME COMMAND...: runs it, keeps its log, and a row of the summary with its time; the next one runs in any case.
step() {
  local name=$1 started=$SECONDS end="done"; shift
  echo "== $name: $*"
  "$@" >"$OUT/$name.log" 2>&1 || { end="FAILED ($?), see $name.log"; FAILED=1; tail -n 15 "$OUT/$name.log"; }
  ROWS+=("| $name | $((SECONDS - started)) s | $end |")
}
# grid RUNS PACK: the post's grid into a folder of its own, on an empty or on a filled compiler's cache.
grid() {
  "$PY" train.py sweeps=blog "scale=$SCALE" "seed=$SEEDS" "machine.device=$DEVICE" "machine.pack=$2" machine.compile=true \
    wandb.mode=disabled "runs_dir=$OUT/$1" "results_dir=$OUT/results${1#runs}"
}

export TORCHINDUCTOR_CACHE_DIR=$OUT/compiled
step equality "$PY" -m pytest -q tests/test_device.py tests/test_packed.py -k "not killed"
step grid-cold grid runs 2
step grid-warm grid runs-warm 2
step grid-single grid runs-single 1
step bench "$PY" -m bench $QUICK ${PEER:+--peer "$PEER"} --out "$OUT/results/bench"
{
  echo "# oneswap on $("$PY" -c "import torch; print(torch.cuda.get_device_name() if '$DEVICE' == 'cuda' else 'a CPU, smoke size: no evidence of speed')")"
  echo; echo "torch $("$PY" -c 'import torch; print(torch.__version__)'), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  echo; echo "| step | time | end |"; echo "|---|---|---|"; printf '%s\n' "${ROWS[@]}"
  echo; cat "$OUT"/results/"$SCALE"/*/table.md "$OUT"/results/bench/*.md 2>/dev/null
} >"$OUT/summary.md"
rm -rf "$OUT/compiled"
cat "$OUT/summary.md"
exit $FAILED
