"""Which finished runs may stand in one table: the odd ones are left out by name, with what is odd about them."""

from collections import Counter, defaultdict

from analysis.runs import BASELINE, RATE, key_of
from limits import SEAMS
from storage.frozen import essential

NOTED = ("code_sha256", "torch", "python", "cpu", "platform")  # of provenance: told where they differ
COMMIT = ("commit", "dirty", "diff_sha256")  # of provenance: also moved by what cannot move a number
OUT = "left out"


def guard(records: list[dict]) -> list[dict]:
    """The records, finished ones marked "left out" where they are unlike those that they are compared with.

    Evaluation and machine must be equal among all runs with the same axes, knobs among the seeds of a variant.
    """
    for marked in (same_conditions, same_knobs):
        out = {key_of(record): record for group in compared(records) for record in marked(group)}
        records = [out.get(key_of(record), record) for record in records]
    return records


def compared(records: list[dict]) -> list[list[dict]]:
    """The finished records in groups that are compared with each other: equal axes, learning rates aside."""
    groups = defaultdict(list)
    for record in records:
        if record["state"] == "finished":
            groups[peers(record["axes"])].append(record)
    return list(groups.values())


def peers(axes: dict) -> str:
    """Equal for variants that are compared with each other."""
    return repr(sorted((key, value) for key, value in axes.items() if key != RATE))


def same_conditions(group: list[dict]) -> list[dict]:
    """The runs that were not evaluated or trained like most, marked. Between equals, the baseline's way counts."""
    ways = Counter(frozen(conditions(r)) for r in group)
    base = Counter(frozen(conditions(r)) for r in group if r["swap"] == BASELINE)
    usual = dict(max(ways, key=lambda way: (ways[way], base[way])))
    odd = [(r, beside(swapped(r), differing(usual, dict(frozen(conditions(r)))))) for r in group]
    return [left_out(r, found, "the table") for r, found in odd if found]


def swapped(record: dict) -> list[str]:
    """The knobs that the record's swap may turn, and what evaluation tells of the same names."""
    seam = SEAMS.get(record.get("about", {}).get("seam"), ())
    return [*seam, *(f"evaluation {key.rpartition('.')[2]}" for key in seam)]


def beside(keys, found: dict) -> dict:
    return {key: pair for key, pair in found.items() if key not in keys}


def conditions(record: dict) -> dict:
    """Everything about evaluation and machine that is recorded, so that a new fact is compared by itself."""
    protocol, machine = record["summary"]["protocol"], record["provenance"]
    found = {f"evaluation {key}": value for key, value in protocol.items()}
    return found | {key: value for key, value in machine.items() if key not in NOTED + COMMIT}


def same_knobs(group: list[dict]) -> list[dict]:
    """The seeds with other knobs than most of their variant, marked. Between equals, what is like the baseline."""
    variants = defaultdict(list)
    for record in group:
        variants[record["variant"]].append(record)
    base = Counter(pair for r in group if r["swap"] == BASELINE for pair in frozen(fixed(r)))
    found = []
    for members in variants.values():
        ways = Counter(frozen(fixed(r)) for r in members)
        usual = dict(max(ways, key=lambda way: (ways[way], sum(base[pair] for pair in way))))
        odd = [(r, differing(usual, dict(frozen(fixed(r))))) for r in members]
        found += [left_out(r, keys, "its variant") for r, keys in odd if keys]
    return found


def fixed(record: dict) -> dict:
    """The knobs that all seeds of a variant must share."""
    return {key: value for key, value in essential(record["config"]).items() if key != "seed"}


def frozen(facts: dict) -> tuple:
    """Hashable; values as text, whole."""
    return tuple(sorted((key, str(value)) for key, value in facts.items()))


def differing(usual: dict, mine: dict) -> dict[str, tuple]:
    """Key -> (usual value, my value)."""
    keys = sorted(usual.keys() | mine.keys())
    pairs = {key: (usual.get(key, "absent"), mine.get(key, "absent")) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def left_out(record: dict, keys: dict, whose: str) -> dict:
    """Marked. `apart`: evaluated in another way, which no repetition of this run would change."""
    words = [f"{key} {short(mine)} where {whose} has {short(usual)}" for key, (usual, mine) in keys.items()]
    reason = "; ".join([*filter(None, [record["reason"]]), ", ".join(words)])
    return record | {"state": OUT, "reason": reason, "apart": any(key.startswith("evaluation ") for key in keys)}


def short(value: str) -> str:
    """A value for print: long hashes by their first digits, also in 'old then new'."""
    parts = [part[:8] if len(part) > 30 and part.isalnum() else part for part in str(value).split(" then ")]
    return " then ".join(parts) or "none"


def beside_seam(swap: dict, baseline: dict) -> dict[str, tuple]:
    """Key -> (baseline's, swap's) of the knobs besides the seam and the axes in which two records differ."""
    found = differing(dict(frozen(fixed(baseline))), dict(frozen(fixed(swap))))
    return beside([*swap["axes"], *baseline["axes"], *swapped(swap)], found)
