"""The panels of a run's figures: its metrics by optimizer step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from sat_slime.objective.metrics import axis_of
from sat_slime.report.drawing import WIDTH, Drawing, Panel, Table, column_of
from sat_slime.report.smoothing import smooth, window_of
from sat_slime.runs.reading import RunData
from sat_slime.runs.rows import has

PANEL_HEIGHT = 2.6
"""Inches."""


class Series(NamedTuple):
    """One line of a panel."""

    key: str
    label: str
    colour: str
    dash: str = "-"


def line_panel(
    data: RunData,
    title: str,
    *series: Series,
    y_label: str | None = None,
    raw: bool = False,
    zero: bool = True,
    log: bool = False,
) -> Panel:
    """A panel of smoothed metrics by step, in the unit of the first one.

    Args:
        y_label: unset: that unit.
        raw: draw the first series also step by step, in a lighter tone.
        zero: the axis begins at 0 unless values lie below.
        log: logarithmic axis.
    """
    unit, scale = axis_of(series[0].key)

    def panel(axes: Axes, table: Table) -> bool:
        if not has(data.metrics, series[0].key):
            return False
        if raw:
            first = series[0]
            axes.plot(steps_of(data), scale * data.metrics[first.key], color=first.colour, alpha=0.3, linewidth=0.8)
        draw_lines(axes, table, data, series, scale)
        return finish(axes, title, y_label or unit, zero=zero, log=log)

    return panel


def draw_lines(axes: Axes, table: Table, data: RunData, series: Sequence[Series], scale: float = 1.0) -> None:
    """Draw the series that have data, smoothed, and put their own values into the table."""
    for key, name, colour, dash in series:
        if has(data.metrics, key):
            values = data.metrics[key]
            table[key] = values
            marker = "o" if np.isfinite(values).sum() <= 2 else None  # a line of one point would not be seen
            mean = scale * smooth(values, window_of(data))
            axes.plot(steps_of(data), mean, color=colour, linestyle=dash, label=name, marker=marker, markersize=3)


def finish(axes: Axes, title: str, y_label: str, zero: bool = True, log: bool = False) -> bool:
    """Title, legend and scale of a panel that has its data."""
    names = axes.get_legend_handles_labels()[1]
    rows = 0
    if len(names) > 1:  # the title names a single line
        longest = max(len(name) for name in names)
        per_row = 1 if longest > 45 else 2 if longest > 28 else 3 if longest > 16 else 4
        rows = -(-len(names) // per_row)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=per_row)
    axes.set_title(title, pad=6 + 14 * rows)
    axes.set_ylabel(y_label)
    if log:
        axes.set_yscale("log", nonpositive="mask")
    elif zero:
        axes.set_ylim(bottom=min(0.0, axes.dataLim.y0))
    return True


def by_step(data: RunData, *panels: Panel) -> Drawing | None:
    """Panels over the optimizer steps; the table begins with them."""
    return column_of(
        panels,
        "optimizer step",
        width=WIDTH,
        height=PANEL_HEIGHT,
        legend=False,
        table={"step": steps_of(data)},
    )


def steps_of(data: RunData) -> np.ndarray:
    """(steps,) the x of every metric."""
    length = max((len(values) for values in data.metrics.values()), default=0)
    return data.metrics.get("step", np.arange(1.0, length + 1))
