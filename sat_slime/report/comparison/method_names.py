"""Methods by their names: labels, looks in figures, and partners without a stabilizer. A run may also bear a name that
is none of a method."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from sat_slime.objective import PAPER_METHODS, Method, named_method
from sat_slime.objective.stabilizers import imported
from sat_slime.report.looks import BLACK, BLUE, COLOURS, GREEN, ORANGE, PURPLE, SKY, VERMILION, Look, apart

PAPER_ORDER = [method.name for method in PAPER_METHODS]
ON = " on "
"""It stands between a method and its task, where runs are of several."""


WITH = " with "
"""It stands between a method and the settings in which its runs differ."""


def task_suffix(name: str) -> str:
    """Return what a name says of its task: ` on pointer_chasing`, or nothing."""
    return name.removeprefix(name.partition(ON)[0])


def method_called(name: str) -> Method | None:
    """Return the method of that name, on whatever task. None: there is none, or its base is outside this package and
    no run's settings named it, or could not be imported here. A name, which may be a folder's, has nothing
    imported."""
    name = _method_part(name)
    if "." in name and not any(path in name for path in imported()):
        return None
    return _named(name)


@functools.cache
def _named(name: str) -> Method | None:
    try:
        return named_method(name)
    except ValueError:
        return None


def _method_part(name: str) -> str:
    return name.partition(ON)[0].partition(WITH)[0]


def _behind(name: str) -> str:
    """Return what stands behind the method in a name: settings and task."""
    return name.removeprefix(_method_part(name))


def label_of(name: str) -> str:
    """Return `sat-gspo-r3` as the paper writes it, `SAT-GSPO w/ R3`, settings and task behind it; other names as they
    are."""
    method = method_called(name)
    return method.label + _behind(name) if method else name


def has(name: str, stabilizer: str) -> bool:
    """Say whether a method of that name has the stabilizer."""
    method = method_called(name)
    return method is not None and method.has(stabilizer)


def pairs_without(stabilizer: str, names: list[str]) -> list[tuple[str, str]]:
    """Return (name, name of that method without the stabilizer) of the methods that have it, each on its own task."""
    methods = [(method_called(name), _behind(name)) for name in names if has(name, stabilizer)]
    return [(method.name + on, method.without(stabilizer).name + on) for method, on in methods if method]


def stabilizers_beside(names: list[str]) -> list[str]:
    """Return the names of the stabilizers that these methods have beside their bases, as they come."""
    methods = [method for method in map(method_called, names) if method]
    beside = [part.name for method in methods for part in method.stabilizers if part is not method.base]
    return list(dict.fromkeys(beside))


def looks_of(names: Sequence[str]) -> dict[str, Look]:
    """Return how methods are drawn: as their stabilizers say, another name as GRPO, and no two alike."""
    looks = []
    for name in names:
        style = (method_called(name) or named_method("grpo")).style
        colour = COLOURS.get(style.colour, style.colour)
        looks.append(Look(label_of(name), colour, style.dash, style.marker, style.filled))
    return dict(zip(names, apart(looks), strict=True))


OWN_COLOURS = (BLACK, BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, "#8C564B")


def own_colours(names: Sequence[str]) -> dict[str, Look]:
    """Return how methods are drawn where each has a colour of its own: with the marker of their base, and beyond eight
    methods with another dash."""
    looks = []
    for place, name in enumerate(names):
        style = (method_called(name) or named_method("grpo")).style
        turn, colour = divmod(place, len(OWN_COLOURS))
        dash = list(_DASHES)[turn % len(_DASHES)]
        looks.append(Look(label_of(name), OWN_COLOURS[colour], dash, style.marker, style.filled))
    return dict(zip(names, apart(looks), strict=True))


def key_to(names: Iterable[str]) -> str:
    """Say in a sentence what colour, dash and marker of these methods tell."""
    lines: dict[str, list[str]] = {}
    for method in filter(None, map(method_called, names)):
        line, givers = method.style, method.line_givers
        look = f"{line.colour} {_DASHES.get(line.dash, 'broken')}"
        plain = givers[0].family == "clip"
        lines.setdefault(look, []).append("none" if plain else " + ".join(giver.row.title for giver in givers))
    meanings = ", ".join(f"{line}: {' or '.join(dict.fromkeys(titles))}" for line, titles in lines.items())
    return (
        f"Colour and dash show the stabilizer ({meanings}), the marker the base (circle: GRPO, square: GSPO), a filled "
        "marker R3."
    )


_DASHES: dict[Any, str] = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dash-dotted"}
