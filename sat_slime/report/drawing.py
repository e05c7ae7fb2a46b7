"""The parts of every figure: layers of lines and markers, panels in one column, and a key."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from sat_slime.report.looks import BLACK, Look

Table = dict[str, np.ndarray]
"""The numbers of a figure, a column for each key; columns may differ in length."""


class Plot(NamedTuple):
    """A panel that has data."""

    chart: alt.Chart | alt.LayerChart
    looks: Sequence[Look] = ()
    """The looks that its key lists."""


Panel = Callable[[Table, alt.Parameter], Plot | None]
"""Draws what the parameter shows of its lines, and adds its numbers to the table; None when it has no data."""


@dataclass
class Drawing:
    """A figure and the table of numbers in it."""

    chart: alt.TopLevelMixin
    table: Table
    columns: int = 1
    """Panels side by side."""


# -------------------------------------------------------------------------------------------------------- data


def rows(**columns: Any) -> alt.InlineData:
    """Return the data of a chart, a row for each entry of the columns; what is one value stands in every row. Numbers
    have five digits; what is not finite is missing."""
    length = max((len(column) for column in columns.values() if _several(column)), default=1)
    filled = [column if _several(column) else [column] * length for column in columns.values()]
    by_row = zip(*([_short(value) for value in column] for column in filled), strict=True)
    return inline(dict(zip(columns, row, strict=True)) for row in by_row)


def joined(parts: Iterable[alt.InlineData]) -> alt.InlineData:
    """Return the rows of all parts as one."""
    return inline(row for part in parts for row in part.values)


def inline(these: Iterable[dict[str, Any]]) -> alt.InlineData:
    """Return the data of these rows. They stand in a tuple: Altair copies a chart hundreds of times, lists with it."""
    return alt.InlineData(values=tuple(these))


def _several(column: Any) -> bool:
    return isinstance(column, (Sequence, np.ndarray)) and not isinstance(column, str)


def _short(value: Any) -> str | float | None:
    if isinstance(value, str):
        return str(value)
    return float(f"{value:.5g}") if value is not None and math.isfinite(value) else None


# ------------------------------------------------------------------------------------------------------- layers


def scale_of(looks: Sequence[Look], part: Callable[[Look], Any]) -> alt.Scale:
    """Return the scale from the names of looks to a part of them."""
    return alt.Scale(domain=[look.name for look in looks], range=[part(look) for look in looks])


def in_colour(looks: Sequence[Look]) -> alt.Color:
    """Return the colour of the column `line`, by its look."""
    return alt.Color("line:N", scale=scale_of(looks, lambda look: look.colour), legend=None)


def lines(
    base: alt.Chart, looks: Sequence[Look], tips: Sequence[alt.Tooltip], *, marks: str = "", **line: Any
) -> list[alt.Chart]:
    """Return layers of lines with their markers, which show their values when hovered over.

    Args:
        base: a chart with x, y and a column `line` that has the names of the looks.
        marks: an expression for the rows that have a marker; unset: all have.
        line: further properties of the lines.
    """
    coloured = base.encode(in_colour(looks))
    dashes = alt.StrokeDash("line:N", scale=scale_of(looks, lambda look: look.dashes), legend=None)
    layers = [coloured.mark_line(clip=True, **line).encode(dashes)]
    if any(look.marker for look in looks):
        layers.append(markers(base.transform_filter(marks) if marks else base, looks))
    return [*layers, pointed(base, tips)]


def markers(base: alt.Chart, looks: Sequence[Look], size: int = 50) -> alt.Chart:
    """Return a layer of markers, by the column `line`."""
    shapes = alt.Shape("line:N", scale=scale_of(looks, lambda look: look.path), legend=None)
    return base.mark_point(size=size, clip=True).encode(in_colour(looks), shapes, _fill(looks, legend=None))


def _fill(looks: Sequence[Look], **more: Any) -> alt.Fill:
    return alt.Fill("line:N", scale=scale_of(looks, lambda look: look.colour if look.filled else "transparent"), **more)


def pointed(base: alt.Chart, tips: Sequence[alt.Tooltip]) -> alt.Chart:
    """Return an unseen layer of points that show their values when hovered over. Files have none of it."""
    return base.mark_point(style="pointed", clip=True, size=110, filled=True, opacity=0, aria=False).encode(
        tooltip=list(tips)
    )


def layered(*layers: Any, **more: Any) -> alt.LayerChart:
    """Return charts on top of each other."""
    return alt.LayerChart(layer=list(layers), **more)


def tip(column: str, title: str, form: str = ".4~g") -> alt.Tooltip:
    """Return a line of what hovering shows. column: as `y:Q` for a number, `line:N` for text."""
    number = column.endswith(":Q")
    return alt.Tooltip(column, title=title, format=form) if number else alt.Tooltip(column, title=title)


def rule(axis: str, value: float, **look: Any) -> alt.Chart:
    """Return a thin straight line at a value of x or y."""
    style: dict[str, Any] = {"strokeWidth": 0.8, "color": BLACK, "clip": True}
    chart = alt.Chart(rows(at=value)).mark_rule(**(style | look))
    return chart.encode(**{axis: alt.datum(value)})


def log_axis(**more: Any) -> dict[str, Any]:
    """Return a logarithmic scale and its axis, from the smallest value to the largest: not to the next powers of
    ten."""
    room = {} if "domain" in more else {"nice": False, "padding": 8}
    return {"scale": alt.Scale(type="log", **(room | more)), "axis": alt.Axis(tickCount=4, format="~g")}


def steps_axis(title: str, **more: Any) -> alt.X:
    """Return the x of a panel over whole numbers, such as optimizer steps."""
    return alt.X(
        "x:Q", title=title, axis=alt.Axis(tickMinStep=1), scale=alt.Scale(zero=False, nice=False, padding=5), **more
    )


# ------------------------------------------------------------------------------------------------------- figures


def column_of(
    panels: Sequence[Panel],
    *,
    height: int = 190,
    one_key: bool = True,
    zoom: bool = True,
    linked: bool = True,
    table: Table | None = None,
) -> Drawing | None:
    """Draw panels one above the other. Those without data are left out, and a figure of none is None.

    Args:
        height: of a panel, pixels; one that has its own keeps it.
        one_key: a single key for all panels, above them; else each panel has its own.
        zoom: x can be moved and zoomed.
        linked: all panels have the same x, and are zoomed together.
        table: columns that come before those of the panels.
    """
    numbers: Table = {}
    drawn: list[tuple[Plot, alt.Parameter]] = []
    for place, panel in enumerate(panels):
        shown = chosen(0 if one_key else place)
        if (plot := panel(numbers, shown)) is not None:
            drawn.append((plot, shown))
    if not drawn:
        return None
    charts: list[Any] = []
    if one_key:
        looks = list({look.name: look for plot, _ in drawn for look in plot.looks}.values())
        charts += [key(looks, drawn[0][1])] if looks else []
    for place, (plot, shown) in enumerate(drawn):
        chart = plot.chart.copy(deep=False)
        if chart.height is alt.Undefined:
            chart.height = height
        if plot.looks and not one_key:
            charts.append(key(plot.looks, shown).properties(title=chart.title))
            chart.title = alt.Undefined
        charts.append(chart.add_params(_zoom(0 if linked else place)) if zoom else chart)
    with quiet():
        chart = alt.vconcat(*charts, spacing=12, resolve=_own_scales(x="shared" if linked and zoom else "independent"))
    return Drawing(chart, (table or {}) | numbers)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Altair, which warns of panels that share a selection: the zoom is shared on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _own_scales(**more: Any) -> alt.Resolve:
    """Return that panels have their own scales. It is given with them: `resolve_scale` would copy them once more."""
    own: Any = dict.fromkeys(("color", "fill", "shape", "stroke", "strokeDash"), "independent")
    return alt.Resolve(scale=alt.ScaleResolveMap(**own, **more))


def _zoom(place: int) -> alt.Parameter:
    """Return the zoom: drag to move, Ctrl and the wheel to zoom; a wheel alone scrolls the page."""
    wheel = "wheel![event.ctrlKey || event.metaKey]"
    return alt.selection_interval(name=f"zoom_{place}", bind="scales", encodings=["x"], zoom=wheel)


def grid_of(grid: Sequence[Sequence[Any]], table: Table) -> Drawing:
    """Draw rows of panels that stand side by side."""
    with quiet():
        charts = [alt.hconcat(*row, spacing=12, resolve=_own_scales()) for row in grid]
        chart = alt.vconcat(*charts, spacing=12, resolve=_own_scales())
    return Drawing(chart, table, max(map(len, grid)))


def facets(panel: alt.LayerChart, data: alt.InlineData, columns: int, table: Table, looks: Sequence[Look]) -> Drawing:
    """Draw the same panel for each name in the column `panel`, with a key to the looks above them."""
    header = alt.Header(title=None, labelAnchor="start", labelFontWeight="bold", labelPadding=4)
    names = list(dict.fromkeys(row["panel"] for row in data.values))
    with quiet():
        grid = panel.facet(alt.Facet("panel:N", header=header, sort=names), columns=columns, data=data)
        chart = alt.vconcat(key(looks, chosen()), grid, spacing=12, resolve=_own_scales())
    return Drawing(chart, table, columns)


def chosen(place: int = 0) -> alt.Parameter:
    """Return the selection of lines that a key makes. place: of the key in its figure."""
    return alt.selection_point(name=f"shown_{place}", fields=["line"], bind="legend")


_BESIDE = 60
"""Pixels left of a panel, for the labels of its axis: a key begins where the panel does."""


def key(looks: Sequence[Look], shown: alt.Parameter) -> alt.Chart:
    """Draw the key to looks: an empty chart below its legend, in which a click chooses what is shown."""
    names = scale_of(looks, lambda look: look.swatch)
    entry = 52 + 7 * max(len(look.name) for look in looks)
    legend = alt.Legend(
        orient="top",
        direction="horizontal",
        columns=alt.expr(f"max(1, floor((room - {_BESIDE}) / {entry}))"),
        symbolSize=25,
        symbolOffset=12,
        labelOffset=16,
    )
    return (
        alt.Chart(rows(line=[look.name for look in looks]), height=1)
        .mark_point(size=0, opacity=1)
        .encode(
            alt.Shape("line:N", scale=names, title=None, legend=legend),
            alt.Stroke("line:N", scale=scale_of(looks, lambda look: look.colour), title=None),
            _fill(looks, title=None),
        )
        .add_params(shown)
    )
