"""How time and memory grow: the baseline block on one thread, one axis at a time, each point in a fresh process."""

from collections.abc import Callable
from statistics import median

from bench import crew
from bench.cases import PLAIN, Contender, Plan, Sizes

# What an axis sets. The jobs of the last one train at the same moment and share nothing but the machine.
KNOBS = {
    "layers": "model.n_layer",
    "width": "model.d_model",
    "context": "model.context",
    "batch": "train.batch_size",
    "seeds": "machine.pack",
    "jobs": None,
}


def measure(plan: Plan, sizes: Sizes, say: Callable[[str], None]) -> list[dict]:
    """One row for each axis and value: seconds a step, every round, and the peak memory of all its processes."""
    found = []
    for axis, values in plan.growth.items():
        say(f"growth with {axis}: {', '.join(map(str, values))}")
        jobs = {p: sizes.job(*plan.base, *p.all_overrides) for p in (point(axis, value) for value in values)}
        with crew.crew(jobs) as groups:
            for group in groups:
                group.build(jobs[group.contender])
            answers = crew.in_turn(groups, plan.rounds, seconds=plan.growth_seconds, with_matrix=False)
        found += [{"axis": axis, "value": value, **row(its)} for value, its in zip(values, answers, strict=True)]
    return found


def point(axis: str, value: int) -> Contender:
    name = f"growth, {axis} {value}"
    if axis == "jobs":
        return Contender(name, "ours", 1, value)
    return Contender(name, "ours", 1, overrides=(*PLAIN, f"{KNOBS[axis]}={value}"))


def row(rounds: list[list[dict]]) -> dict:
    return {
        "rounds_ms": [median(answer["step_s"] for answer in answers) * 1000 for answers in rounds],
        "peak_mb": sum(answer["peak_mb"] for answer in rounds[-1]),
    }
