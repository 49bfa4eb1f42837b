"""The tables of a measurement, from its JSON alone."""

from statistics import median

from analysis.formats import markdown_table
from analysis.words import NONE, TIMES

REFERENCE = "nanogpt"  # the first contender of this builder is what the others are compared with


def markdown(found: dict) -> str:
    """All of a measurement: what is on the terminal and in the .md file."""
    parts = [f"# Speed on {found['machine']['name']}", made(found)]
    cases = list(dict.fromkeys(row["case"] for row in found["speed"]))
    for case in cases:
        parts += [f"## Training speed: {case}", speed([row for row in found["speed"] if row["case"] == case])]
    parts += [SPEED_WORDS]
    for shape in dict.fromkeys(tuple(row["shape"]) for row in found["norms"]):
        title = f"## Norms: {shape[0]:,} symbols, width {shape[1]:,}"
        parts += [title, norms([row for row in found["norms"] if tuple(row["shape"]) == shape])]
    parts += [NORM_WORDS, "## Growth", f"![Time and memory]({found['machine']['slug']}.png)", growth(found["growth"])]
    parts += [GROWTH_WORDS, "## Share of the parent", share(found["share"]), SHARE_WORDS]
    return "\n\n".join(parts) + "\n"


def made(found: dict) -> str:
    machine, versions = found["machine"], ", ".join(f"{name} {v}" for name, v in found["versions"].items())
    commit = f"commit {found['commit'][:10]}" if found["commit"] else "no commit"
    where = f"{found['date']}, {commit}{' with changes' * bool(found['dirty'])}"
    return f"{where}; {machine['cores']} cores, load {machine['load']:.1f} before, {machine['device']}; {versions}."


def speed(rows: list[dict]) -> str:
    reference = next((row for row in rows if row["builder"] == REFERENCE), None)
    heads = ["contender", f"processes {TIMES} threads", "precision", "tokens/s", "from", "to", "to nanoGPT", "share"]
    return markdown_table((heads, [speed_cells(row, reference) for row in rows]))


def speed_cells(row: dict, reference: dict | None) -> list[str]:
    rates = [its["tokens_per_s"] for its in row["rounds"]]
    shares = [its["tokens_per_s"] * row["flops_per_token"] / its["matrix_flops_per_s"] for its in row["rounds"]]
    ratio = NONE
    if reference:  # round by round: a machine that slows down slows both
        pairs = zip(row["rounds"], reference["rounds"], strict=True)
        ratio = f"{median(mine['tokens_per_s'] / its['tokens_per_s'] for mine, its in pairs):.2f}"
    counts = [f"{rate:,.0f}" for rate in (median(rates), min(rates), max(rates))]
    layout = f"{row['processes']} {TIMES} {row['threads']}"
    return [row["contender"], layout, row["precision"], *counts, ratio, f"{median(shares):.0%}"]


def norms(rows: list[dict]) -> str:
    passes = list(dict.fromkeys(row["pass"] for row in rows))
    time_of = {(row["norm"], row["how"], row["pass"]): median(row["rounds_us"]) for row in rows}
    kinds = list(dict.fromkeys((row["norm"], row["how"]) for row in rows))
    cells = [[f"{norm}, {how}", *(f"{time_of[norm, how, name]:,.0f}" for name in passes)] for norm, how in kinds]
    return markdown_table((["norm", *(f"{name}, µs" for name in passes)], cells))


def growth(rows: list[dict]) -> str:
    cells = []
    for row in rows:
        times = row["rounds_ms"]
        counts = [f"{time:,.1f}" for time in (median(times), min(times), max(times))]
        cells.append([row["axis"], f"{row['value']:,}", *counts, f"{row['peak_mb']:,.0f}"])
    return markdown_table((["axis", "value", "ms a step", "from", "to", "peak MB"], cells))


def share(found: dict) -> str:
    small, large = found["sweeps"]
    further = (large["cpu_s"] - small["cpu_s"]) / (large["jobs"] - small["jobs"])
    fixed = small["cpu_s"] - small["jobs"] * further
    cells = [
        [f"freezing a job, mean of {found['freezes']:,}", f"{found['freeze_s']:.3f}"],
        [f"a further job, {large['jobs']} jobs against {small['jobs']}", f"{further:.3f}"],
        [f"once a sweep, from {small['jobs']} jobs down to none", f"{fixed:.3f}"],
        ["each job of a sweep of 1,000, by these two", f"{further + fixed / 1000:.3f}"],
    ]
    return markdown_table((["what", "CPU seconds of the driver"], cells))


SPEED_WORDS = (
    "Median, least and most over rounds in which the contenders took turns. `to nanoGPT`: the median over rounds of "
    "the rate beside nanoGPT's own in the same round. `share`: matrix FLOPs that the model needs, of those that the "
    "same processes did in plain products of its own shapes, in the precision of most contenders' training: how much "
    "is left to gain. nanoGPT's train.py trains in float32 on a CPU; `+ autocast` is our doing."
)
NORM_WORDS = "float32, one thread; median over rounds in turn. `written out`: element-wise operations in Python."
GROWTH_WORDS = (
    "The baseline block on one thread, each point in a fresh process; `jobs`: such processes at once, their memory "
    "added. The first few hundred MB are torch itself."
)
SHARE_WORDS = "Its own processor time, without that of the jobs, which it starts and waits for. Target: 0.15 a job."
