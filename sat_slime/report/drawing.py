"""What every figure is made of: panels in one column, a style, smoothing, and files with the numbers beside them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sat_slime.config.disk import naming

Columns = Mapping[str, np.ndarray]
Table = dict[str, np.ndarray]
Panel = Callable[[Axes, Table], bool]
"""Draws into the axes, adds its numbers to the table; False when it has no data."""

# Okabe and Ito's colours, told apart by the colour-blind; every line also has its own dash for print in grey.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#CCCCCC"
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.borderaxespad": 0.1,
    "legend.columnspacing": 1.4,
    "legend.fontsize": 9,
    "legend.handlelength": 2.6,
    "svg.hashsalt": "sat_slime",  # equal data gives equal files
}
WIDTH, PANEL_HEIGHT = 6.4, 2.6
"""Inches. One column of panels, so that text stays readable at the width of a phone."""


@dataclass
class RunData:
    """What the figures are drawn from. Any of it may be empty."""

    metrics: Columns = field(default_factory=dict)
    evals: Columns = field(default_factory=dict)
    histograms: Sequence[Mapping[str, Any]] = ()
    period: int = 1
    """Steps over which the realized lag cycles; smoothing windows are whole multiples of it."""


@dataclass
class Drawing:
    """A figure and the table of numbers in it."""

    figure: Figure
    table: Table


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average over `window` values, fewer at the ends; NaNs are left out."""
    known = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    at = np.arange(len(values))
    low, high = np.maximum(at - window // 2, 0), np.minimum(at - window // 2 + window, len(values))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count[high] > count[low], (total[high] - total[low]) / (count[high] - count[low]), np.nan)


def window_of(data: RunData) -> int:
    """Steps of the smoothing window: about a twentieth of the run in whole lag cycles; 1 while it has few of them."""
    steps = len(data.metrics.get("step", ()))
    if steps < 4 * data.period:
        return 1
    return data.period * max(1, round(steps / 20 / data.period))


class Series(NamedTuple):
    """One line of a panel."""

    key: str
    label: str
    colour: str
    dash: str = "-"


def line_panel(
    data: RunData,
    title: str,
    y_label: str,
    *series: Series,
    raw: bool = False,
    scale: float = 1.0,
    zero: bool = True,
    log: bool = False,
) -> Panel:
    """A panel of smoothed metrics by step. raw: the first series also step by step, in a lighter tone. scale: 100
    for percent. zero: the axis begins at 0 unless values lie below. log: logarithmic axis."""

    def panel(axes: Axes, table: Table) -> bool:
        if not has(data.metrics, series[0].key):
            return False
        if raw:
            first = series[0]
            axes.plot(steps_of(data), scale * data.metrics[first.key], color=first.colour, alpha=0.3, linewidth=0.8)
        draw_lines(axes, table, data, series, scale)
        return finish(axes, title, y_label, zero=zero, log=log)

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


def stack(
    data: RunData,
    *panels: Panel,
    x_label: str = "optimizer step",
    by_step: bool = True,
) -> Drawing | None:
    """Panels one above the other; those without data are left out, and a figure of none is None."""
    with matplotlib.rc_context(STYLE):
        filled = [panel for panel in panels if panel(Figure().add_subplot(), {})]
        if not filled:
            return None
        figure = Figure(figsize=(WIDTH, PANEL_HEIGHT * len(filled) + 0.3), layout="constrained")
        table: Table = {"step": steps_of(data)} if by_step else {}
        column = figure.subplots(len(filled), 1, squeeze=False)[:, 0]
        for panel, axes in zip(filled, column, strict=True):
            panel(axes, table)
            if by_step:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        column[-1].set_xlabel(x_label)
        return Drawing(figure, table)


def steps_of(data: RunData) -> np.ndarray:
    """(steps,) the x of every metric."""
    length = max((len(values) for values in data.metrics.values()), default=0)
    return data.metrics.get("step", np.arange(1.0, length + 1))


def has(columns: Columns, key: str) -> bool:
    """Whether a column holds any number."""
    return key in columns and bool(np.isfinite(columns[key]).any())


def save(drawing: Drawing, folder: Path, name: str) -> bytes:
    """Write NAME.png, NAME.svg and NAME.csv into `folder`; returns the SVG. An OSError names the folder at least."""
    with naming(folder):
        return _save(drawing, folder, name)


def _save(drawing: Drawing, folder: Path, name: str) -> bytes:
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        drawing.figure.draw_without_rendering()
        drawing.figure.set_layout_engine("none")  # laid out once is enough for both files
        drawing.figure.savefig(folder / f"{name}.png", dpi=130)
        drawing.figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    rows = max((len(values) for values in drawing.table.values()), default=0)
    with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(drawing.table)
        for row in range(rows):
            writer.writerow([_cell(values, row) for values in drawing.table.values()])
    return (folder / f"{name}.svg").read_bytes()


def _cell(values: np.ndarray, row: int) -> str:
    if values.dtype.kind == "U":
        return str(values[row]) if row < len(values) else ""
    return f"{values[row]:.10g}" if row < len(values) and np.isfinite(values[row]) else ""
