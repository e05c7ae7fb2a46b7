"""Curves of several seeds as one line with its range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np

from sat_slime.report.averages import smooth, window_of
from sat_slime.report.comparison.compared_runs import ComparedRun
from sat_slime.report.drawing import Plot, in_colour, joined, layered, lines, rows, tip
from sat_slime.report.looks import Look

MARKS = 6
"""Markers on a line."""


def marks(length: int, place: int) -> list[int]:
    """Return where a line of `length` points has markers; lines at other places have them elsewhere."""
    if length <= MARKS:
        return list(range(length))
    spacing = length / MARKS
    return sorted({min(length - 1, int(spacing * (i + 0.12 + 0.76 * (place % 7) / 7))) for i in range(MARKS)})


def aligned(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return (x (points,), values (curves, points)) over all x that occur, NaN where a curve has none."""
    curves = [(x[np.isfinite(x)], y[np.isfinite(x)]) for x, y in curves]
    grid = np.unique(np.concatenate([x for x, _ in curves] or [np.zeros(0)]))
    values = np.full((len(curves), len(grid)), np.nan)
    for row, (x, y) in zip(values, curves, strict=True):
        row[np.searchsorted(grid, x)] = y
    return grid, values


def metric_curve(run: ComparedRun, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (steps, a metric smoothed over whole lag cycles); empty where the run lacks it."""
    if key not in run.data.metrics or not np.isfinite(run.data.metrics[key]).any():
        return np.zeros(0), np.zeros(0)
    return run.data.metrics["step"], smooth(run.data.metrics[key], window_of(run.data))


@dataclass(frozen=True)
class SeedCurve:
    """The mean over the seeds of a method and their range, at the x that all of them have."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    """The lowest seed at each x."""
    high: np.ndarray
    seeds: int

    def rows(self, look: Look, place: int) -> alt.InlineData:
        """Return the data of a chart. place: of the method among those of the panel."""
        marked = np.isin(np.arange(len(self.x)), marks(len(self.x), place)).astype(float)
        more = {"marked": marked, "seeds": self.seeds}
        return rows(x=self.x, y=self.mean, low=self.low, high=self.high, line=look.name, **more)


def seed_curve(curves: Sequence[tuple[np.ndarray, np.ndarray]], scale: float = 1.0) -> SeedCurve | None:
    """Return the curves of the seeds together; None where there is no x that all of them have."""
    curves = [curve for curve in curves if len(curve[0])]
    x, values = aligned(curves)
    if not len(values):
        return None
    mean = values.mean(axis=0)  # NaN where a curve has no point: where one ends, the mean of the others would jump
    known = np.isfinite(mean)
    if not known.any():
        return None
    values = scale * values[:, known]
    return SeedCurve(x[known], scale * mean[known], values.min(axis=0), values.max(axis=0), len(values))


def curve_panel(
    parts: Mapping[Look, alt.InlineData], title: str, x: alt.X, y: alt.Y, shown: alt.Parameter, *, band: bool = True
) -> Plot:
    """Draw a panel of the rows of seed curves, with their range as a band."""
    looks, unit = list(parts), str(y["title"])
    base = alt.Chart().encode(x, y).transform_filter(shown)
    tips = [tip("line:N", "method"), tip("x:Q", str(x["title"]), "d"), tip("y:Q", f"mean, {unit}")]
    tips += [tip("low:Q", "min over seeds"), tip("high:Q", "max over seeds"), tip("seeds:Q", "seeds", "d")]
    layers = lines(base, looks, tips, marks="datum.marked")
    if band:
        low = alt.Y("low:Q", title=unit)
        layers.insert(0, base.mark_area(opacity=0.13, clip=True).encode(low, in_colour(looks), y2="high:Q"))
    return Plot(layered(*layers, data=joined(parts.values()), title=title), looks)
