"""Measures training speed beside the peers, the norms, growth, and what a sweep's driver costs.

python -m bench [--peer CHECKOUT] [--hf] [--quick] [--out results/bench]      (make bench)

How to read the numbers: contenders take turns, A B C, A B C, so that what else the machine does meets all of them;
compare within a table, never between two measurements. Median, least and most over the rounds: where two ranges
overlap, the order is not known. Ours trains in the environment that a sweep gives its jobs, a peer in that of the
person who started it. <machine>.json has every round, <machine>.md the tables, <machine>.svg the growth.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import crew, figure, growth, nanogpt, share, speed, tables
from bench.cases import FULL, PLAIN, QUICK, Contender, Plan, Sizes, on_cpu, on_gpu
from cli import in_one_line
from config import Config, Precision, UserError
from engine.plan import slug
from storage import files
from storage.provenance import provenance
from training import machine

PACKAGES = {"llama": "transformers", "x_transformers": "x-transformers"}  # peer -> where it is from


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 2 for a mistake of the person who typed it, or a contender that cannot train."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure speed, growth and overhead.")
    parser.add_argument("--peer", type=Path, help="a checkout of nanoGPT, to train beside ours")
    parser.add_argument("--hf", action="store_true", help="transformers' Llama beside ours, and x-transformers")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round: does it work?")
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="folder of JSON, tables and figure")
    return in_one_line(bench, parser.parse_args(arguments))


def bench(options: argparse.Namespace) -> int:
    plan = QUICK if options.quick else FULL
    peer = options.peer and options.peer.resolve()
    if peer:
        nanogpt.require(peer, "model.py")
    hf = require_hf() if options.hf else ()
    facts = describe(options.quick)
    where = facts["machine"]
    bf16 = where["precision"] == Precision.bf16.value
    on_a_cpu = where["device"] == "cpu"
    chosen = on_cpu(where["cores"], bf16, peer is not None, hf) if on_a_cpu else on_gpu(peer is not None, hf)
    with TemporaryDirectory(prefix="oneswap-") as folder:
        sizes = Sizes(Path(folder))
        found = {**facts, "versions": versions(peer, hf), **measure(plan, chosen, sizes, peer)}
    text = tables.markdown(found)
    path = options.out / where["slug"]
    files.save(path.with_suffix(".json"), files.to_json(found))
    files.save(path.with_suffix(".md"), text.encode())
    figure.draw(found["growth"], [path.with_suffix(".svg"), path.with_suffix(".png")])
    print(text)
    print(f"Every round, these tables and the figure: {path}.json, .md, .svg, .png")
    return 0


def measure(plan: Plan, chosen: list[Contender], sizes: Sizes, peer: Path | None) -> dict:
    return {
        "speed": speed.measure(plan, chosen, sizes, peer, say),
        "norms": norms_alone(plan, sizes),
        "growth": growth.measure(plan, sizes, say),
        "share": share.measure(plan, sizes.text, say),
    }


def norms_alone(plan: Plan, sizes: Sizes) -> list[dict]:
    """In the environment of a sweep's job, on one thread as there."""
    say("norms")
    alone = Contender("norms", "ours", 1, overrides=PLAIN)
    job = sizes.job(*plan.base, *alone.all_overrides)
    with crew.crew({alone: job}) as (group,):
        group.build(job)
        (answer,) = group.ask(do="norms", shapes=plan.norm_shapes, rounds=plan.rounds, seconds=plan.norm_seconds)
        return answer["norms"]


def describe(quick: bool) -> dict:
    """When, on what machine and from which code."""
    facts = provenance(machine.settle(Config().machine).facts())
    name, cores = facts["device_name"] or facts["cpu"], machine.cores()
    words = [slug(name).lower()] + ["1-gpu" if facts["device_name"] else f"{cores}-cores"] + ["quick"] * quick
    where = {"name": name, "slug": "-".join(words), "cpu": facts["cpu"], "cores": cores}
    where |= {key: facts[key] for key in ("platform", "device", "precision")} | {"load": os.getloadavg()[0]}
    if where["load"] > cores / 2:
        say(f"warning: load {where['load']:.1f} on {cores} cores: other work slows several threads more than one")
    today = datetime.now(UTC).date().isoformat()
    return {"date": today, "machine": where, **{key: facts[key] for key in ("commit", "dirty", "code_sha256")}}


def versions(peer: Path | None, hf: tuple[str, ...]) -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in ("torch", "numpy", *(PACKAGES[name] for name in hf))}
    if peer:
        found["nanoGPT model.py sha256"] = hashlib.sha256((peer / "model.py").read_bytes()).hexdigest()[:12]
    return {"python": platform.python_version(), **found}


def require_hf() -> tuple[str, ...]:
    """The peers that are installed. Raises UserError without `transformers`; the other is no must."""
    here = tuple(name for name, package in PACKAGES.items() if importlib.util.find_spec(package.replace("-", "_")))
    if "llama" not in here:
        raise UserError('PEER_HF=1 needs transformers: pip install -c constraints.txt ".[bench]"')
    return here


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
