"""Synthetic sweeps for the tests of analysis/: records, or the run folders that hold the same."""

import copy
import json
from pathlib import Path

import numpy as np
import yaml

# At scale cpu, a trial gave about these final bits per byte.
ABOUT = {
    "baseline": ("baseline", "SwiGLU + RMSNorm (baseline)", 2.55),
    "gelu": ("mlp", "GELU MLP, 4D wide", 2.74),
    "layernorm": ("norm", "LayerNorm instead of RMS", 2.54),
    "postnorm": ("wiring", "Post-norm", 2.81),
    "learned": ("position", "Learned positions", 3.08),
}
FINALS = {swap: final for swap, (_, _, final) in ABOUT.items()}
STEPS = (200, 400, 600, 800)


def sweep(finals=None, seeds=(0, 1, 2), sd=0.02, draw=0, steps=STEPS, scale="cpu", name="blog", **axes) -> list[dict]:
    """Finished records: each seed moves all variants alike by `sd`, and each run by a quarter of it."""
    rng = np.random.default_rng(draw)
    shift = {seed: rng.normal(0, sd) for seed in seeds}
    records = []
    for swap, final in (finals or FINALS).items():
        for seed in seeds:
            end = final + shift[seed] + rng.normal(0, sd / 4)
            records.append(record(swap, seed, end, rng, steps, scale=scale, name=name, axes=axes))
    return records


def record(swap: str, seed: int, end: float, rng, steps=STEPS, scale="cpu", name="blog", axes=None) -> dict:
    axes = axes or {}
    seam, label, _ = ABOUT.get(swap, ("other", swap, 0))
    last, late = steps[-1], (end - 2) * 0.6 + 0.6  # a later start of the swaps that end behind
    falling = {step: end + late * (last / step - 1) ** 0.8 / 2.3 for step in steps}
    evals = [[0, 6.6], *([step, float(bpb + (step < last) * rng.normal(0, 0.008))] for step, bpb in falling.items())]
    curve = [
        [s, float(np.interp(s, *zip(*evals, strict=True)) * 0.69 + rng.normal(0, 0.04))]
        for s in range(10, last + 1, 10)
    ]
    best = min(evals, key=lambda row: row[1])
    variant = ",".join([swap, *(f"{key}={value:g}" for key, value in axes.items())])
    turned = {f"model.{name}": swap if name == seam else "as ever" for name in ("mlp", "norm", "wiring", "position")}
    return {
        "scale": scale, "sweep": name, "swap": swap, "variant": variant, "seed": seed, "axes": axes,
        "state": "finished", "reason": "",
        "about": {"seam": seam, "label": label, "replaces": "", "paper": "", "matched": True, "reason": ""},
        "config": {"seed": seed, **turned, "train.lr": axes.get("train.lr", 1e-3), "text.name": "canterbury"},
        "text": "canterbury", "evals": evals, "curve": curve, "summary": summary(evals, best, rng),
        "provenance": {"commit": "c0ffee", "code_sha256": "1a2b3c4d5e", "compile": False, "threads": 1, "device": "cpu",
                       "device_name": "", "precision": "fp32", "torch": "2.13.0"},
    }  # fmt: skip


def summary(evals: list, best: list, rng) -> dict:
    return {
        "final_bpb": evals[-1][1], "evals": evals, "best_bpb": best[1], "best_step": best[0], "passes": 1.53,
        "train_s": 61.0,
        "tokens_per_s": float(rng.normal(26_100, 200)), "peak_mb": 412.5, "baseline_non_embedding": 443_232,
        "params": {"total": 451_872, "non_embedding": 443_232, "active": 451_872}, "flops_per_token": 6_100_000,
        "kv_bytes_per_token": 1536, "dev_bytes": 119_000, "dev_symbols": 119_000, "fallback_bytes": 0,
        "train_bytes": 1_070_000, "anchors": {"gzip": 3.215, "bzip2": 2.812, "xz": 2.931},
        "protocol": {"context": 128, "stride": 128, "precision": "fp32", "kind": "char", "text_sha256": "ab" * 32},
    }  # fmt: skip


def altered(records: list[dict], where: str, **changes) -> list[dict]:
    """A copy in which the run `variant/seed<k>` has other fields; a dict is laid over the dict that is there."""
    records = copy.deepcopy(records)
    for r in records:
        if f"{r['variant']}/seed{r['seed']}" == where:
            for key, value in changes.items():
                r[key] = r[key] | value if isinstance(value, dict) else value
    return records


def folders(records: list[dict], runs: Path, plan: bool = True) -> Path:
    """Run folders that hold the records. Returns the sweep's folder."""
    home = runs / records[0]["scale"] / records[0]["sweep"]
    for r in records:
        folder = home / r["variant"] / f"seed{r['seed']}"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(config(r)))
        (folder / "provenance.json").write_text(json.dumps(r["provenance"]))
        if r["state"] in ("finished", "diverged"):
            (folder / "summary.json").write_text(json.dumps(r["summary"] | {"evals": r["evals"]}))
        last = r["evals"][-1][0]
        status = {"state": r["state"], "reason": r["reason"], "step": last, "steps": last}
        (folder / "status.json").write_text(json.dumps(status))
        rows = [{"step": step, "val_bpb": bpb} for step, bpb in r["evals"]]
        rows += [{"step": step, "loss": loss, "lr": 1e-3} for step, loss in r["curve"]]
        rows.sort(key=lambda row: row["step"])
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if plan:
        (home / "plan.json").write_text(json.dumps({"runs": [f"{r['variant']}/seed{r['seed']}" for r in records]}))
    return home


def config(r: dict) -> dict:
    tree: dict = {"about": r["about"], "run": {"swap": r["swap"], "axes": r["axes"]}, "wandb": {}, "name": None}
    for key, value in r["config"].items():
        *path, leaf = key.split(".")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        place[leaf] = value
    return tree
