"""Training speed: every contender at every size, in turn."""

from collections.abc import Callable
from pathlib import Path

from bench import crew
from bench.cases import Contender, Plan, Sizes
from engine.plan import Job
from training import cost


def measure(
    plan: Plan, contenders: list[Contender], sizes: Sizes, peer: Path | None, say: Callable[[str], None]
) -> list[dict]:
    """One row for each size and contender, with every round. Raises UserError where a contender cannot train."""
    jobs = {
        (case, c): sizes.job(*case.overrides, *c.all_overrides)
        for case in plan.cases
        for c in contenders
        if case.takes(c)
    }
    found = []
    with crew.crew({c: job for (_, c), job in jobs.items()}) as groups:
        for case in plan.cases:
            mine = [group for group in groups if (case, group.contender) in jobs]
            say(f"training speed, {case.name}: {len(mine)} contenders build and warm up")
            facts = [group.build(jobs[case, group.contender], peer) for group in mine]
            say(f"training speed, {case.name}: {plan.rounds} rounds in turn")
            answers = crew.in_turn(mine, plan.rounds, seconds=plan.seconds, with_matrix=True)
            for group, fact, rounds in zip(mine, facts, answers, strict=True):
                words = row(group.contender, jobs[case, group.contender], fact)
                found.append({"case": case.name, **words, "rounds": [together(its) for its in rounds]})
    return found


def row(c: Contender, job: Job, fact: dict) -> dict:
    flops = cost.of_config(job.config.model, job.config.run.vocab_size).flops_per_token
    words = {"contender": c.name, "builder": c.builder, "threads": c.threads, "processes": c.processes}
    return {**words, "precision": fact["precision"], "compile": fact["compile"], "flops_per_token": flops}


def together(answers: list[dict]) -> dict:
    """One round of workers that trained at the same moment: their rates added."""
    return {key: sum(answer[key] for answer in answers) for key in ("tokens_per_s", "matrix_flops_per_s")}
