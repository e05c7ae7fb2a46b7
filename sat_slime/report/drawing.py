"""What every figure is made of: a style, panels in one column, and files with the numbers beside them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sat_slime.config.disk import naming

Table = dict[str, np.ndarray]
"""The numbers of a figure, a column for each key; columns may differ in length."""
Panel = Callable[[Axes, Table], bool]
"""Draws into the axes, adds its numbers to the table; False when it has no data."""

# Okabe and Ito's colours, told apart by the colour-blind; every line also has its own dash for print in grey.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#CCCCCC"
COLOURS = {
    "black": BLACK,
    "orange": ORANGE,
    "sky": SKY,
    "green": GREEN,
    "blue": BLUE,
    "vermilion": VERMILION,
    "purple": PURPLE,
}
"""The colours, by the names that stabilizers have for them."""
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
WIDTH, NARROW_WIDTH = 6.4, 5.2
"""Inches. Figures have one column of panels, so that their text stays readable across a phone; in the narrow ones, of
many lines and longer labels, text of 10 points is then 9 pixels high."""


@dataclass
class Drawing:
    """A figure and the table of numbers in it."""

    figure: Figure
    table: Table


def column_of(
    panels: Sequence[Panel],
    x_label: str,
    *,
    width: float = NARROW_WIDTH,
    height: float = 2.9,
    legend: bool = True,
    integer_x: bool = True,
    table: Table | None = None,
) -> Drawing | None:
    """Panels one above the other. Those without data are left out, and a figure of none is None.

    height: of one panel, inches. legend: one for all panels, above them. integer_x: the axes have ticks at whole
    numbers alone. table: columns that come before those of the panels.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(layout="constrained")
        column, numbers = _filled(figure, panels)
        if not column:
            return None
        handles: dict[str, Any] = {}
        for axes in column:
            handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
            if integer_x:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        column[-1].set_xlabel(x_label)
        figure.set_size_inches(width, height * len(column) + 0.3)
        if legend and handles:
            rows = -(-len(handles) // 3)
            figure.set_size_inches(width, height * len(column) + 0.4 + 0.21 * rows)
            figure.legend(
                handles.values(), handles.keys(), loc="outside upper left", ncols=3, handlelength=2.5, columnspacing=1.0
            )
        return Drawing(figure, (table or {}) | numbers)


def _filled(figure: Figure, panels: Sequence[Panel]) -> tuple[list[Axes], Table]:
    """The axes of the panels that have data, one above the other without gaps, and the numbers of all of them."""
    table: Table = {}
    column: list[Axes] = []
    every: list[Axes] = list(figure.subplots(len(panels), 1, squeeze=False)[:, 0]) if panels else []
    for panel, axes in zip(panels, every, strict=True):
        numbers: Table = {}
        if panel(axes, numbers):
            table |= numbers
            column.append(axes)
        else:
            axes.remove()
    if 0 < len(column) < len(panels):
        grid = figure.add_gridspec(len(column), 1)
        for row, axes in enumerate(column):
            axes.set_subplotspec(grid[row])
    return column, table


def save(drawing: Drawing, folder: Path, name: str) -> bytes:
    """Write NAME.png, NAME.svg and NAME.csv into `folder`; returns the SVG. An OSError names the folder at least."""
    with naming(folder):
        return _save(drawing, folder, name)


def _save(drawing: Drawing, folder: Path, name: str) -> bytes:
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        drawing.figure.draw_without_rendering()
        drawing.figure.set_layout_engine("none")  # one layout is enough for both files
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
