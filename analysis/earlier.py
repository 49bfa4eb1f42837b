"""The records of a sweep that were there before: what is kept of them, and how new ones stand to them."""

import subprocess
from contextlib import suppress
from pathlib import Path

from analysis import runs
from analysis.guard import conditions, differing, frozen, short
from analysis.runs import BASELINE, key_of, name_of
from analysis.study import Row, Variant, study
from analysis.words import some
from config import UserError
from storage.rundir import ENDED

FORGIVEN = ("evaluation precision", "precision", "device", "device_name", "threads", "compile")  # told, not refused


def merge(old: list[dict], gathered: list[dict]) -> tuple[list[dict], list[dict]]:
    """The records of a sweep after a look into its run folders, and those among them that were kept.

    An ended run replaces what was there; another replaces only what had not ended. Where the folders have all runs
    that ever ended, they alone are the sweep, so that a run can be withdrawn; else the plan is the union.
    """
    new = {key_of(r): r for r in gathered}
    before = {key_of(r): r for r in old}
    kept = {key: r for key, r in before.items() if r["state"] in ENDED and not has_ended(new.get(key))}
    if all(key in new for key in kept):
        return [kept.get(key, r) for key, r in new.items()], list(kept.values())
    kept |= {key: r for key, r in before.items() if key not in new}
    merged = [kept.get(key) or new[key] for key in dict.fromkeys([*before, *new])]
    return sorted(merged, key=lambda r: r["swap"] != BASELINE), [r for r in merged if key_of(r) in kept]


def has_ended(record: dict | None) -> bool:
    return record is not None and record["state"] in ENDED


def committed(path: Path) -> tuple[list[dict], str]:
    """The records as git has them, "committed"; else as they lie there, "before". [] where none can be read."""
    show = ["git", "show", f"HEAD:./{path.name}"]
    with suppress(UserError, OSError):  # damaged; no folder, no git
        found = subprocess.run(show, cwd=path.parent, capture_output=True, check=False)
        if found.returncode == 0:
            return runs.parse(found.stdout, path), "committed"
    with suppress(UserError):
        return runs.load(path), "before"
    return [], "before"


def beside(old: list[dict], new: list[dict], word: str) -> list[str]:
    """How `new` records of a sweep stand to the `old`, called `word`: one line a variant that has changed."""
    if not old or not new or old == new:
        return []
    before = {row.variant.name: row for row in study(old).views[0].rows if row.variant.done}
    return [
        line(row, before[row.variant.name], word)
        for row in study(new).views[0].rows
        if row.variant.done and row.variant.name in before and row.variant.done != before[row.variant.name].variant.done
    ]


def line(row: Row, past: Row, word: str) -> str:
    ours, theirs = row.variant.final.mean, past.variant.final.mean
    text = f"{row.variant.label}: {ours:.3f} now, {theirs:.3f} {word} ({ours - theirs:+.3f})"
    if row.final is not None and past.final is not None:
        as_before = "as committed" if word == "committed" else "as before"
        text += f"; {row.verdict}, " + (as_before if row.verdict == past.verdict else f"{word}: {past.verdict}")
    found = differing(way(past.variant), way(row.variant))
    refused = {key: pair for key, pair in found.items() if key not in FORGIVEN}
    if refused:
        text += f"; not comparable: {in_words(refused)}"
    elif found:
        text += f"; {in_words(found)}"
    return text


def way(v: Variant) -> dict:
    return dict(frozen(conditions(next(iter(v.done.values())))))


def in_words(found: dict) -> str:
    return ", ".join(f"{key} {short(mine)} here, {short(theirs)} there" for key, (theirs, mine) in found.items())


def kept_words(kept: list[dict]) -> str:
    """One line, in short where it is long; "" where nothing was kept."""
    return f"Kept from the records that were there: {some([name_of(r) for r in kept])}." if kept else ""
