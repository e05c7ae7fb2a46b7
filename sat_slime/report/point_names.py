"""Places the names of points in a figure so that none hides another or a point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

NAME_SIZE = 10
"""Height of the letters, pixels."""
_LETTER = 0.56 * NAME_SIZE
_MARKER = 4.5
"""Half the width of a point's marker, pixels."""


class NamePlace(NamedTuple):
    """The place of a name, in pixels from its point: the end that it is aligned by, and its baseline; y grows
    downwards."""

    dx: float
    dy: float
    align: str


class _Box(NamedTuple):
    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


_PLACES = [
    *(NamePlace(side * 6, dy, align) for dy in (-5, 12) for side, align in ((1, "left"), (-1, "right"))),
    *(NamePlace(side * 8, 3.5, align) for side, align in ((1, "left"), (-1, "right"))),
    *(NamePlace(0, dy, "center") for dy in (-8, 16)),
    *(NamePlace(side * 4, dy, align) for dy in (-16, 23) for side, align in ((1, "left"), (-1, "right"))),
]
"""The places that are tried, the best first."""


def name_places(
    x: Sequence[float], y: Sequence[float], names: Sequence[str], width: float, height: float
) -> list[NamePlace | None]:
    """Return the place of each point's name, from left to right the first that is free; None where none is, or no name.

    Args:
        x, y: (points,) in pixels from the panel's upper left corner.
        names: (points,); empty for a point without a name, which is only not to be hidden.
        width, height: of the panel, pixels.
    """
    taken = [_Box(cx - _MARKER, cx + _MARKER, cy - _MARKER, cy + _MARKER) for cx, cy in zip(x, y, strict=True)]
    places: list[NamePlace | None] = [None] * len(names)
    for point in np.argsort(x, kind="stable"):
        if not names[point]:
            continue
        for place, box in _boxes(x[point], y[point], len(names[point]) * _LETTER):
            inside = box.left >= 0 and box.right <= width and box.top >= 0 and box.bottom <= height
            if inside and not any(box.meets(other) for other in taken):
                places[point] = place
                taken.append(box)
                break
    return places


def _boxes(x: float, y: float, length: float) -> Iterator[tuple[NamePlace, _Box]]:
    before = {"left": 0.0, "center": length / 2, "right": length}
    for place in _PLACES:
        left, baseline = x + place.dx - before[place.align], y + place.dy
        yield place, _Box(left, left + length, baseline - 0.8 * NAME_SIZE, baseline + 0.2 * NAME_SIZE)
