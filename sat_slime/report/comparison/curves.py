"""Lines of many methods that stay apart in grey print, and means over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from sat_slime.objective import named_method
from sat_slime.report.comparison.collection import ComparedRun
from sat_slime.report.comparison.methods import label_of, method_called
from sat_slime.report.drawing import COLOURS, Table
from sat_slime.report.smoothing import smooth, window_of

MARKS = 6
"""Markers on a line."""


def style_of(name: str) -> dict[str, Any]:
    """How a method is drawn: as its stabilizers say; a name that is none of a method as GRPO."""
    style = (method_called(name) or named_method("grpo")).style
    colour = COLOURS.get(style.colour, style.colour)
    return {
        "color": colour,
        "linestyle": style.dash,
        "marker": style.marker,
        "markersize": 4.5,
        "markerfacecolor": colour if style.filled else "white",
        "markeredgecolor": colour,
        "markeredgewidth": 1.1,
        "linewidth": 1.4,
    }


def key_to(names: Iterable[str]) -> str:
    """What colour, dash and marker of these methods tell, in a sentence."""
    lines: dict[str, list[str]] = {}
    for method in filter(None, map(method_called, names)):
        line, givers = method.style, method.line_givers
        told = f"{line.colour} {_DASHES.get(line.dash, 'broken')}"
        plain = givers[0].family == "clip"
        lines.setdefault(told, []).append("none" if plain else " + ".join(one.row.title for one in givers))
    told = ", ".join(f"{line}: {' or '.join(dict.fromkeys(titles))}" for line, titles in lines.items())
    return (
        f"Colour and dash tell the stabilizer ({told}), the marker the base (circle: GRPO, square: GSPO), a filled "
        "marker R3."
    )


_DASHES: dict[Any, str] = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dash-dotted"}


def marks(length: int, place: int) -> list[int]:
    """Where a line of `length` points has markers; lines at other places have them elsewhere."""
    if length <= MARKS:
        return list(range(length))
    spacing = length / MARKS
    return sorted({min(length - 1, int(spacing * (i + 0.12 + 0.76 * (place % 7) / 7))) for i in range(MARKS)})


def aligned(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """(x (points,), values (curves, points)) over all x that occur, NaN where a curve has none."""
    curves = [(x[np.isfinite(x)], y[np.isfinite(x)]) for x, y in curves]
    grid = np.unique(np.concatenate([x for x, _ in curves] or [np.zeros(0)]))
    values = np.full((len(curves), len(grid)), np.nan)
    for row, (x, y) in zip(values, curves, strict=True):
        row[np.searchsorted(grid, x)] = y
    return grid, values


def metric_curve(run: ComparedRun, key: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, a metric smoothed over whole lag cycles); empty where the run lacks it."""
    if key not in run.data.metrics or not np.isfinite(run.data.metrics[key]).any():
        return np.zeros(0), np.zeros(0)
    return run.data.metrics["step"], smooth(run.data.metrics[key], window_of(run.data))


def seed_mean(values: np.ndarray) -> np.ndarray:
    """(points,) mean over the curves, NaN at points that not all of them have: where one ends, the mean of the others
    would jump."""
    return values.mean(axis=0) if len(values) else np.full(values.shape[1], np.nan)


def draw_seeds(
    axes: Axes,
    table: Table,
    method: str,
    curves: Sequence[tuple[np.ndarray, np.ndarray]],
    place: int,
    column: str,
    band: bool,
    scale: float = 1.0,
) -> bool:
    """The mean over the seeds of a method, with the range from the least to the greatest of them where `band`."""
    curves = [curve for curve in curves if len(curve[0])]
    if not curves:
        return False
    x, values = aligned(curves)
    values = scale * values
    mean = seed_mean(values)
    known = np.isfinite(mean)
    x, values, mean = x[known], values[:, known], mean[known]
    if not len(x):
        return False
    style = style_of(method)
    axes.plot(x, mean, label=label_of(method), markevery=marks(len(x), place), **style)
    table |= {f"{column}: x": x, f"{column}: mean": mean}
    if band and len(values) > 1:
        axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.13, linewidth=0)
        table |= {f"{column}: least": values.min(axis=0), f"{column}: greatest": values.max(axis=0)}
    return True
