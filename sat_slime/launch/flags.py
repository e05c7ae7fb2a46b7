"""The flags of the slime that is installed, or a recorded list of slime's flags.

slime ignores an unknown flag without a word, and its SGLang parser takes an abbreviation for a flag; so every flag of a
command is checked against this list before it is sent. `slime_flags.json` has the flags of two versions of slime, and
those that the text of the newest version's parser shows; `built_with` says how each was read. scripts/record_flags.py
records a version anew.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("slime_flags.json")


@dataclass(frozen=True)
class Flag:
    """A flag as slime's parser knows it."""

    name: str
    """The flag's first name, with the dashes."""
    values: int | str = 1
    """How many values follow the flag: a number, or `?` (none or one), `*` (any number), `+` (one or more)."""
    type: str | None = None
    """Type of the values, int or float; None for any other."""
    repeatable: bool = False
    """Whether the flag keeps both values when it is given twice; any other flag keeps the last one."""


@dataclass(frozen=True)
class KnownFlags:
    """The flags of one slime, or of all recorded versions together."""

    source: str
    """Which slime the flags are of, for messages."""
    by_name: Mapping[str, Flag]
    """The flags, each by every name that it has."""


@functools.cache
def recorded_flags(version: str | None = None) -> KnownFlags:
    """Return the flags of one recorded version of slime, or those of all versions together where none is named."""
    data = json.loads(RECORDED.read_text())
    versions = data["versions"]
    flags = {
        name: spec for name, spec in data["flags"].items() if version is None or version in spec.get("only", versions)
    }
    named = {version: versions[version]} if version else versions
    *others, last = (f"{name} ({commit[:9]})" for name, commit in named.items())
    source = " and ".join([*([", ".join(others)] if others else []), last])
    return KnownFlags(f"slime {source} as recorded", flags_by_name(flags))


def unknown_flags(
    flags: Iterable[tuple[str, Sequence[str], str]], known: KnownFlags, governed: Mapping[str, str]
) -> list[str]:
    """Return a line for every fault of a command's flags: one that is unknown, abbreviated or repeated, or has another
    number of values than it takes.

    Args:
        flags: name with dashes, values, and the setting that it comes from.
        governed: the setting that alone gives a flag, by the flag with its dashes.
    """
    errors: list[str] = []
    seen: set[str] = set()
    for name, values, key in flags:
        flag = known.by_name.get(name)
        if flag is None:
            errors.append(f"{key}: there is no flag {name} in {known.source}{_nearest(name, known, governed)}")
            continue
        if flag.name in seen and not flag.repeatable:
            again = "is given twice" if name == flag.name else f"is {flag.name}, which the command has already"
            errors.append(f"{key}: {name} {again}, and slime takes the last: leave one of them out")
        seen.add(flag.name)
        errors += [f"{key}: {fault}" for fault in _value_faults(flag, name, values)]
    return errors


def _value_faults(flag: Flag, name: str, values: Sequence[str]) -> Iterator[str]:
    shown = " ".join(values)
    if isinstance(flag.values, int):
        if len(values) != flag.values:
            takes = "no value" if flag.values == 0 else f"{flag.values} value(s)"
            remedy = ": set it to true" if flag.values == 0 else ""
            yield f"{name} takes {takes}, not {shown!r}{remedy}" if values else f"{name} takes {takes}, and has none"
    elif (flag.values == "+" and not values) or (flag.values == "?" and len(values) > 1):
        yield f"{name} takes {'one value or more' if flag.values == '+' else 'at most one value'}, not {shown!r}"


def _nearest(name: str, known: KnownFlags, governed: Mapping[str, str]) -> str:
    longer = sorted((full for full in known.by_name if full.startswith(name)), key=len)
    close = longer[:1] or difflib.get_close_matches(name, known.by_name, n=1, cutoff=0.6)
    if close and close[0] in governed:
        key = governed[close[0]]
        what = f"That follows from {key}: set that, and leave this out" if key else "The command has it: leave this out"
        return f"; did you mean {close[0]}? {what}"
    return f"; did you mean {close[0]}? Flags are written in full" if close else ""


def flags_by_name(flags: Mapping[str, Mapping[str, Any]]) -> dict[str, Flag]:
    """Return the flags in the form in which they are recorded, each by every name that it has."""
    by_name = {}
    for name, spec in flags.items():
        flag = Flag(name, spec["values"], spec.get("type"), spec.get("repeatable", False))
        by_name.update(dict.fromkeys([name, *spec.get("aliases", ())], flag))
    return by_name
