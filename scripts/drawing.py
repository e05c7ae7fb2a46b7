"""What the drawn pictures of the documentation share: their palette in light and dark, and paths and text of SVG."""

from __future__ import annotations

from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs/images"

LIGHT = {
    "ink": "#1c1c1c",
    "dim": "#5f6368",
    "paper": "#fdfdfc",
    "rule": "#d4d4d0",
    "old": "#0072b2",
    "new": "#d55e00",
    "sat": "#009e73",
}
DARK = {
    "ink": "#e6e6e3",
    "dim": "#a0a4a8",
    "paper": "#17181a",
    "rule": "#43464b",
    "old": "#2f8fcb",
    "new": "#e07a2b",
    "sat": "#3ccf9f",
}


def style(rules: str, colours: str) -> str:
    """Return a style sheet: `rules` as they are, and `colours`, in which {ink}, {sat}, ... stand for the palette, for a
    light and for a dark page. Its classes are plain instead of CSS variables, which not every program that shows SVG
    knows."""
    dark = "@media (prefers-color-scheme: dark) {" + colours.format(**DARK) + "}"
    return rules + colours.format(**LIGHT) + dark


def path(points: list[tuple[float, float]]) -> str:
    """Return the `d` of a line through `points`."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
