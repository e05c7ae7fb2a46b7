"""Looks of lines and of parts of bars, by which each can be told from the others, also in grey print."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

# Okabe and Ito's colours, told apart by the colour-blind; every line also has its own dash for print in grey. Black is
# that of the text, so that it is white on a dark page.
BLACK, ORANGE, SKY, GREEN = "currentColor", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#999999"
COLOURS = {
    "black": BLACK,
    "orange": ORANGE,
    "sky": SKY,
    "green": GREEN,
    "blue": BLUE,
    "vermilion": VERMILION,
    "purple": PURPLE,
}
"""The colours by their names."""
_DASHES = {"": (0, 1), "-": (100, 0), "--": (4, 2), ":": (1, 1.6), "-.": (5, 2, 1, 2)}
"""Lengths on and off, in widths of the line."""
LINE = 1.6
"""Width of a line, pixels."""
_SWATCH = 4.5
"""Half the length of a sample in a key, in radii of a marker."""


def _star(points: int, inner: float = 1.0, turn: float = 0.0) -> str:
    """Return the SVG path of a star of radius 1, or of a polygon where the inner corners are left out (`inner` 1)."""
    radii = [1.0] * points if inner == 1 else [1.0, inner] * points
    angles = [math.radians(turn) - math.pi / 2 + 2 * math.pi * i / len(radii) for i in range(len(radii))]
    corners = [f"{r * math.cos(a):.3f},{r * math.sin(a):.3f}" for r, a in zip(radii, angles, strict=True)]
    return f"M{'L'.join(corners)}Z"


_CROSS = "M-.3,-1H.3V-.3H1V.3H.3V1H-.3V.3H-1V-.3H-.3Z"
_SHAPES = {
    "": "M0,0Z",
    "o": "M-.85,0A.85,.85,0,1,1,.85,0A.85,.85,0,1,1,-.85,0Z",
    "s": _star(4, turn=45),
    "D": _star(4),
    "^": _star(3),
    "v": _star(3, turn=180),
    "<": _star(3, turn=-90),
    ">": _star(3, turn=90),
    "d": "M0,-1L.6,0L0,1L-.6,0Z",
    "p": _star(5),
    "h": _star(6),
    "*": _star(5, inner=0.4),
    "P": _CROSS,
    "X": _star(4, inner=0.3, turn=45),
    "|": "M0,-1.4V1.4",
    "bar": "M-2.4,-1.4H2.4V1.4H-2.4Z",
}
"""SVG paths of radius 1, by their letters."""
MARKERS = tuple(_SHAPES)[1:-2]
CROSS = _SHAPES["X"]


@dataclass(frozen=True)
class Look:
    """The look of a line, or of a part of a bar."""

    name: str
    """Its name in the key."""
    colour: str
    dash: Any = "-"
    """`-`, `--`, `:`, `-.`, or (0, lengths on and off in widths of the line); empty: markers alone."""
    marker: str = ""
    """One of MARKERS; empty: none. Another one is drawn as a circle."""
    filled: bool = False

    @property
    def apart(self) -> tuple[Any, ...]:
        """The properties of which one must differ between two looks of a figure."""
        return self.colour, str(self.dash), self.marker, self.filled

    @property
    def path(self) -> str:
        """SVG path of its marker."""
        return _SHAPES.get(self.marker, _SHAPES["o"])

    @property
    def dashes(self) -> list[float]:
        """Pixels on and off."""
        lengths = _DASHES[self.dash] if isinstance(self.dash, str) else self.dash[1]
        return [LINE * length for length in lengths]

    @property
    def swatch(self) -> str:
        """SVG path of its sample in a key: the dashes, and the marker in their middle."""
        path, x, ends = "", -_SWATCH, itertools.cycle(self.dashes)
        while x < _SWATCH and self.dash:
            on = min(x + next(ends) / 2.5, _SWATCH)
            for a, b in ((x, min(on, -1.2)), (max(x, 1.2), on)) if self.marker else ((x, on),):
                path += f"M{a:.2f},0H{b:.2f}" if b > a else ""
            x = on + next(ends) / 2.5
        return path + self.path


def apart(looks: Iterable[Look], dashes: bool = True) -> list[Look]:
    """Return the same looks, none of them twice: a later one that equals an earlier one gets a marker, else a dash and
    a colour, that is free.

    Args:
        dashes: a dash tells them apart; where points stand by themselves, it does not.
    """

    def seen(look: Look) -> tuple[Any, ...]:
        return look.apart if dashes else replace(look, dash="").apart

    taken: dict[tuple[Any, ...], Look] = {}
    for look in looks:
        free = itertools.chain(
            [look],
            (replace(look, marker=marker) for marker in MARKERS),
            (
                replace(look, colour=colour, dash=dash, marker=marker)
                for marker, dash, colour in itertools.product(MARKERS, list(_DASHES)[1:], COLOURS.values())
            ),
        )
        new = next((candidate for candidate in free if seen(candidate) not in taken), look)
        taken[(*seen(new), new.name) if seen(new) in taken else seen(new)] = new
    return list(taken.values())
