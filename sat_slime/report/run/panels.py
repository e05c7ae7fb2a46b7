"""The panels of a run's figures: its metrics by optimizer step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import altair as alt
import numpy as np

from sat_slime.objective.metrics import axis_of
from sat_slime.report.drawing import (
    Drawing,
    Panel,
    Plot,
    Table,
    column_of,
    joined,
    layered,
    lines,
    log_axis,
    rows,
    steps_axis,
    tip,
)
from sat_slime.report.looks import Look
from sat_slime.report.smoothing import smooth, window_of
from sat_slime.runs.reading import RunData
from sat_slime.runs.rows import has

Series = tuple[str, Look]
"""A metric and how it is drawn."""


def line_panel(
    data: RunData,
    title: str,
    *series: Series,
    y_label: str | None = None,
    raw: bool = False,
    zero: bool = True,
    log: bool = False,
    levels: Sequence[tuple[float, Look]] = (),
) -> Panel:
    """A panel of smoothed metrics by step, in the unit of the first one.

    Args:
        y_label: unset: that unit.
        raw: draw the first series also step by step, in a lighter tone.
        zero: the axis begins at 0 unless values lie below.
        log: logarithmic axis.
        levels: values in that unit that straight lines mark.
    """
    unit, scale = axis_of(series[0][0])

    def panel(table: Table, shown: alt.Parameter) -> Plot | None:
        if not has(data.metrics, series[0][0]):
            return None
        parts, looks = [], []
        for metric, look in series:
            if has(data.metrics, metric):
                table[metric] = data.metrics[metric]
                mean, own = (scale * one for one in (smooth(table[metric], window_of(data)), table[metric]))
                if log:
                    mean, own = (np.where(one > 0, one, np.nan) for one in (mean, own))
                parts.append(rows(x=steps_of(data), y=mean, own=own, line=look.name))
                # a line of one point would not be seen
                looks.append(look if np.isfinite(mean).sum() > 2 else replace(look, marker="o"))
        for level, look in levels:
            parts.append(rows(x=steps_of(data)[[0, -1]], y=[level] * 2, own=[level] * 2, line=look.name))
            looks.append(look)
        y = alt.Y("y:Q", title=y_label or unit, **(log_axis() if log else {"scale": alt.Scale(zero=zero)}))
        told = f", {unit}" if unit else ""
        tips = [tip("line:N", "line"), tip("x:Q", "step", "d"), tip("y:Q", f"mean{told}"), tip("own:Q", f"step{told}")]
        base = alt.Chart().encode(steps_axis("optimizer step"), y).transform_filter(shown)
        layers = lines(base, looks, tips)
        if raw:
            first = base.transform_filter(alt.datum.line == looks[0].name)
            faint = first.mark_line(clip=True, opacity=0.35, strokeWidth=0.8, color=looks[0].colour)
            layers.insert(0, faint.encode(alt.Y("own:Q", title=y_label or unit)))
        return Plot(layered(*layers, data=joined(parts), title=title), looks)

    return panel


def by_step(data: RunData, *panels: Panel) -> Drawing | None:
    """Panels over the optimizer steps; the table begins with them."""
    return column_of(panels, height=170, one_key=False, table={"step": steps_of(data)})


def steps_of(data: RunData) -> np.ndarray:
    """(steps,) the x of every metric."""
    length = max((len(values) for values in data.metrics.values()), default=0)
    return data.metrics.get("step", np.arange(1.0, length + 1))
