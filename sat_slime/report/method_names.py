"""Methods by their names: labels, looks in figures, and partners without a stabilizer. A run may also bear a name that
is none of a method."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sat_slime.objective import PAPER_METHODS, Method, Stabilizer, named_method
from sat_slime.objective.method import imported
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


class Style(NamedTuple):
    """The look of a method in figures."""

    colour: str
    """A name of looks.COLOURS."""
    dash: Any
    """The dash of lines: `-`, `--`, `:`, `-.`, or (0, (6, 1)), lengths on and off in widths of the line."""
    marker: str
    """One of looks."""
    filled: bool


_BROKEN, _CLOSE = (0, (6, 1)), (0, (1, 1, 4, 1))
STYLES: dict[str, tuple[str, Any, str]] = {
    "ppo": ("black", "-", "v"),
    "grpo": ("black", "-", "o"),
    "trpo": ("black", "-", "X"),
    "dppo": ("green", "-.", "^"),
    "dppo-kl": ("green", "-.", "<"),
    "spo": ("vermilion", _CLOSE, "o"),
    "drpo": ("vermilion", _CLOSE, "D"),
    "icepop": ("sky", _BROKEN, "D"),
    "icepop-weight": ("sky", _BROKEN, "d"),
    "kpop": ("sky", _BROKEN, "P"),
    "gspo": ("black", "-", "s"),
    "seqclip": ("sky", _BROKEN, "s"),
    "gmpo": ("black", "-", "p"),
    "cpgd": ("black", "-", "h"),
    "m2po": ("sky", _BROKEN, "*"),
    "cispo": ("purple", "-", "o"),
    "rollout-is": ("purple", "-", "D"),
    "topr": ("purple", "-", "^"),
    "aspo": ("purple", "-", "v"),
    "gipo": ("purple", (0, (3, 1, 1, 1)), "^"),
    "flash": ("purple", "-", "s"),
    "vespo": ("purple", "-", "P"),
    "sapo": ("vermilion", _CLOSE, "^"),
    "ipo": ("vermilion", _CLOSE, "s"),
    "dro": ("vermilion", _CLOSE, "v"),
    "sat": ("blue", "--", ""),
    "lag-power": ("vermilion", (0, (7, 2)), ""),
    "bapo": ("vermilion", (0, (4, 2, 1, 2)), ""),
    "tis": ("orange", ":", ""),
    "seq-tis": ("orange", (0, (3, 1)), ""),
    "seq-mask-tis": ("orange", (0, (5, 1, 1, 1)), ""),
    "decoupled": ("orange", (0, (1, 2)), ""),
    "a3po": ("green", (0, (7, 2, 1, 2)), ""),
    "mis-geo": ("sky", (0, (1, 1)), ""),
    "opsm": ("sky", (0, (3, 1, 1, 1)), ""),
    "trm-max": ("sky", (0, (5, 2, 1, 2)), ""),
    "trm-mean": ("sky", (0, (5, 2, 1, 2, 1, 2)), ""),
    "veto": ("sky", (0, (2, 2)), ""),
    "estr": ("vermilion", (0, (2, 2)), ""),
    "topp": ("green", (0, (8, 2)), ""),
}
"""Colour and dash of each stabilizer, and the marker of a base; R3 fills the marker."""
_OWN_STYLE = ("purple", (0, (3, 1)), "*")
"""Of a base outside this package."""


def style_of(method: Method) -> Style:
    """Return colour and dash of what is switched on beside the base, else of the base; the base's marker."""
    base = STYLES.get(method.base_name) or STYLES.get(method.base.name, _OWN_STYLE)
    lines = [STYLES.get(giver.name, base) if giver is not method.base else base for giver in _givers(method)]
    return Style(lines[0][0], lines[-1][1], base[2], method.routing_replay)


def _givers(method: Method) -> tuple[Stabilizer, ...]:
    """Return the stabilizers which give a method's lines colour, the first of them, and dash, the last."""
    beside = method.stabilizers[1:]
    prefixes = [part for part in beside if part.place == "prefix"]
    ordered = [*prefixes, *(part for part in beside if part.place == "suffix")]
    return tuple(part for part in ordered if part.name in STYLES) or (method.base,)


def looks_of(names: Sequence[str]) -> dict[str, Look]:
    """Return how methods are drawn: by their stabilizers, another name as GRPO, and no two alike."""
    looks = []
    for name in names:
        style = style_of(method_called(name) or named_method("grpo"))
        looks.append(Look(label_of(name), COLOURS[style.colour], style.dash, style.marker, style.filled))
    return dict(zip(names, apart(looks), strict=True))


OWN_COLOURS = (BLACK, BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, "#8C564B")


def own_colours(names: Sequence[str]) -> dict[str, Look]:
    """Return how methods are drawn where each has a colour of its own: with the marker of their base, and beyond eight
    methods with another dash."""
    looks = []
    for place, name in enumerate(names):
        style = style_of(method_called(name) or named_method("grpo"))
        turn, colour = divmod(place, len(OWN_COLOURS))
        dash = list(_DASHES)[turn % len(_DASHES)]
        looks.append(Look(label_of(name), OWN_COLOURS[colour], dash, style.marker, style.filled))
    return dict(zip(names, apart(looks), strict=True))


def key_to(names: Iterable[str]) -> str:
    """Say in a sentence what colour, dash and marker of these methods tell."""
    lines: dict[str, list[str]] = {}
    for method in filter(None, map(method_called, names)):
        line, givers = style_of(method), _givers(method)
        look = f"{line.colour} {_DASHES.get(line.dash, 'broken')}"
        plain = line.colour == "black"
        lines.setdefault(look, []).append("none" if plain else " + ".join(giver.title() for giver in givers))
    meanings = ", ".join(f"{line}: {' or '.join(dict.fromkeys(titles))}" for line, titles in lines.items())
    return (
        f"Colour and dash show the stabilizer ({meanings}), the marker the base (circle: GRPO, square: GSPO), a filled "
        "marker R3."
    )


_DASHES: dict[Any, str] = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dash-dotted"}
