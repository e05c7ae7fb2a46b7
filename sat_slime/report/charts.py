"""The charts of all pages: each a single Vega-Lite view of one data frame, as wide as its place on the page.

A frame has the columns `x`, `y` and `line`, and for a band or an interval `low` and `high`.
"""

from __future__ import annotations

import functools
import json
import math
import re
import resource
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import vl_convert
from altair.utils import schemapi

from sat_slime.config.disk import naming

schemapi.disable_debug_mode()  # else Altair holds each part against its schema, which takes longer than the drawing

# Okabe and Ito's colours, told apart by the colour-blind; further lines have another dash. INK is the colour of the
# text, which is light on a dark page.
INK, BLUE, VERMILION, GREEN = "currentColor", "#0072B2", "#D55E00", "#009E73"
ORANGE, SKY, PURPLE, GREY = "#E69F00", "#56B4E9", "#CC79A7", "#999999"
COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, INK, GREY)
DASHES = ([1, 0], [5, 2], [1.5, 2], [6, 2, 1.5, 2])
Look = tuple[str, Sequence[float]]
"""Colour and dash of a line."""
WIDTH = 640
"""Pixels of a picture; on a page a chart is as wide as its place."""
LEGEND_COLUMNS = r'\{"expr": ?"floor\(width / (\d+)\)"\}'
"""The columns of a legend in a specification, by the pixels of each. A number takes their place once the width is
known: Vega would lay out the legend before it evaluates them, and cut it off."""
MOST_POINTS = 400
"""Points that a line shows; its CSV has all."""
CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "padding": 2,
    "autosize": {"type": "fit-x", "contains": "padding"},
    "view": {"stroke": None},
    "line": {"strokeWidth": 1.6, "clip": True},
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor", "domainColor", "tickColor", "gridColor"), INK),
        **{"domainOpacity": 0.6, "tickOpacity": 0.6, "gridOpacity": 0.13},
        **{"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal", "labelOverlap": True},
        "labelLimit": 240,
    },
    "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "labelLimit": 420, "orient": "top"},
    "title": {"anchor": "start", "color": INK, "fontSize": 13, "fontWeight": 600, "offset": 6, "frame": "group"},
}


@dataclass(frozen=True)
class Chart:
    """A chart and the numbers in it."""

    name: str
    """Of its files."""
    view: alt.Chart | alt.LayerChart
    frame: pd.DataFrame
    columns: Mapping[str, str] = field(default_factory=dict)
    """What the CSV calls the columns of the frame."""

    def spec(self) -> dict[str, Any]:
        """Return the Vega-Lite specification, as wide as its place on a page."""
        spec = self.view.to_dict(validate=False)
        datasets = spec.get("datasets", {}) | {"numbers": _rows(_thinned(self.frame))}  # Altair's own is that of rules
        named = {"description": spec["title"]} if isinstance(spec.get("title"), str) else {}
        return spec | named | {"width": "container", "config": CONFIG, "datasets": datasets}

    def save(self, folder: Path) -> None:
        """Write NAME.csv and NAME.svg into a folder."""
        numbers = self.frame.drop(columns=["key", "place"], errors="ignore")
        write_csv(numbers.rename(columns=self.columns), folder / f"{self.name}.csv")
        with naming(folder):
            (folder / f"{self.name}.svg").write_text(self.svg(), encoding="utf-8")

    def svg(self) -> str:
        """Return the chart as a picture on white, without descriptions of each mark, which would be most of it."""
        check_address_space()
        config = CONFIG | {"autosize": "pad", "aria": False, "background": "white"}
        text = json.dumps(self.spec() | {"width": WIDTH, "config": config}).replace(INK, "black")
        text = re.sub(LEGEND_COLUMNS, lambda room: str(max(1, WIDTH // int(room[1]))), text)
        return str(vl_convert.vegalite_to_svg(text))


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame with ten digits. A text that begins like a formula gets a quote: to a spreadsheet it is text."""
    formulas = ("=", "+", "-", "@", "\t", "\r")
    plain = frame.map(lambda value: f"'{value}" if isinstance(value, str) and value.startswith(formulas) else value)
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        plain.replace([math.inf, -math.inf], math.nan).to_csv(path, index=False, float_format="%.10g")


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a specification: numbers with seven digits, none for what is not finite."""
    return [
        {
            key: value if isinstance(value, str) else float(f"{value:.7g}")
            for key, value in row.items()
            if isinstance(value, str) or (value is not None and math.isfinite(value))
        }
        for row in frame.to_dict("records")
    ]


def _thinned(frame: pd.DataFrame) -> pd.DataFrame:
    if not {"x", "line"} <= set(frame) or len(frame) <= MOST_POINTS:
        return frame
    place = frame.groupby("line", sort=False).cumcount()
    size = frame.groupby("line", sort=False)["line"].transform("size")
    spread = place * 0.6180339887 % 1  # in steps of one size a line could meet the same lag each time
    return frame[(spread < MOST_POINTS / size) | (place == size - 1)]


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a colour and a dash for each name, no two alike."""
    return {
        name: (COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)])
        for i, name in enumerate(dict.fromkeys(names))
    }


def coloured(names: Sequence[str], of: Mapping[str, Look] | None = None, dashes: bool = True) -> dict[str, Any]:
    """Return the encodings of colour and dash by the column `line`, with one legend, in as many columns as fit."""
    of = of or looks(names)
    room = 46 + round(6.8 * max(map(len, names), default=1))
    columns = alt.expr(f"floor(width / {room})")  # see LEGEND_COLUMNS
    symbol = "stroke" if dashes else "square"
    legend = alt.Legend(title=None, columns=columns, symbolType=symbol, symbolStrokeWidth=2, symbolOpacity=1)
    shown = legend if len(names) > 1 else None
    colour = alt.Scale(domain=list(names), range=[of[name][0] for name in names])
    encoding: dict[str, Any] = {"color": alt.Color("line:N", scale=colour, legend=shown)}
    if dashes:
        dash = alt.Scale(domain=list(names), range=[list(of[name][1]) for name in names])
        encoding["strokeDash"] = alt.StrokeDash("line:N", scale=dash, legend=shown)
    return encoding


CHOSEN = alt.selection_point(name="chosen", fields=["line"], bind="legend")
"""The choice of lines that a click in the legend makes."""
SOLID = alt.value(DASHES[0])


def axis(title: str, column: str, *, kind: type = alt.Y, log: bool = False, zero: bool = False, **more: Any) -> Any:
    """Return an axis over the column, from its smallest value to its largest."""
    if log:
        return kind(column, title=title, scale=alt.Scale(type="log", nice=False, padding=6), axis=alt.Axis(tickCount=4))
    scale = alt.Scale(zero=zero) if kind is alt.Y else alt.Scale(zero=zero, nice=False, padding=5)
    return kind(column, title=title, scale=scale, **more)


def lines(
    name: str,
    frame: pd.DataFrame,
    title: str,
    x: str,
    y: str,
    *,
    of: Mapping[str, Look] | None = None,
    log: bool = False,
    zero: bool = False,
    points: bool = False,
    faint: str = "",
    levels: Iterable[float] = (),
    height: int = 190,
) -> Chart:
    """Draw lines; the values of all of them are shown at the x nearest to the pointer, a click in the legend chooses,
    dragging moves along x, Ctrl and the wheel zoom.

    Args:
        frame: x, y, line; with low and high a band or, where points are drawn, a bar.
        of: colour and dash of each line. Default: by their order.
        faint: a further column, drawn thin and pale: single steps behind an average.
        levels: values of y that straight lines mark.
    """
    names = list(dict.fromkeys(frame["line"]))
    frame = frame.assign(key=frame["line"].map({name: f"line{i}" for i, name in enumerate(names)}))
    shown = alt.Chart(alt.NamedData("numbers")).transform_filter(CHOSEN)
    near = alt.selection_point(name="near", nearest=True, on="pointerover", fields=["x"], empty=False)
    steps_of_one: dict[str, Any] = {"axis": alt.Axis(tickMinStep=1)} if (frame["x"] % 1 == 0).all() else {}
    across = axis(x, "x:Q", kind=alt.X, **steps_of_one)
    base = shown.encode(across, axis(y, "y:Q", log=log, zero=zero), **coloured(names, of))
    layers: list[Any] = []
    if "low" in frame:
        mark = base.mark_rule(clip=True) if points else base.mark_area(opacity=0.13, clip=True)
        dash = SOLID if points else alt.Undefined
        layers.append(mark.encode(y=alt.Y("low:Q", title=y), y2="high:Q", strokeDash=dash))
    if faint:
        pale = base.mark_line(opacity=0.35, strokeWidth=0.8)
        layers.append(pale.encode(alt.Y(f"{faint}:Q", title=y), strokeDash=SOLID))
    wheel = "wheel![event.ctrlKey || event.metaKey]"
    zoom = alt.selection_interval(name="zoom", bind="scales", encodings=["x"], zoom=wheel)
    layers.append(base.mark_line().add_params(CHOSEN, zoom))
    if points or frame.groupby("line")["x"].size().max() < 3:  # a line of one point would not be seen
        layers.append(base.mark_point(filled=True, size=36, clip=True, opacity=1).encode(strokeDash=SOLID))
    rule = alt.Chart(alt.InlineData([{}])).mark_rule(color=GREY, strokeDash=[2, 2], clip=True)
    layers += [rule.encode(y=alt.datum(value)) for value in levels]
    tips = [alt.Tooltip("x:Q", title=x, format=".5~g")]
    for i, line in enumerate(names):
        tips.append(alt.Tooltip(field=f"line{i}", type="quantitative", title=line, format=".4~g"))
    told = shown.transform_pivot("key", value="y", groupby=["x"]).mark_rule(color=GREY).add_params(near)
    seen = alt.when(near).then(alt.value(0.5)).otherwise(alt.value(0))
    told = told.encode(alt.X("x:Q"), opacity=seen, tooltip=tips)
    view = alt.layer(*layers, told).properties(title=title, height=height)
    return Chart(name, view, frame, {"x": x, "y": y})


def bars(
    name: str, frame: pd.DataFrame, title: str, unit: str, *, of: Mapping[str, Look] | None = None, text: str = ""
) -> Chart:
    """Draw bars, one below the other, their parts on top of each other, those below 0 to the left. frame: group, line,
    y. text: a column that is written at the end of the bar, where the column `end` is known."""
    names, groups = (list(dict.fromkeys(frame[column])) for column in ("line", "group"))
    frame = frame.assign(place=frame["line"].map({line: i for i, line in enumerate(names)}))
    colour = coloured(names, of, dashes=False)
    y = alt.Y("group:N", title=None, sort=groups, axis=alt.Axis(ticks=False), scale=alt.Scale(padding=0.2))
    # With a text there is room for it at the end of the longest.
    scale = alt.Scale(domain=[0, 1.12 * float(frame["end"].max()) or 1], nice=False) if text else alt.Scale(nice=False)
    value = alt.X("y:Q", title=unit, stack="zero", scale=scale, axis=alt.Axis(tickCount=5))
    tips = [alt.Tooltip("group:N", title=" "), alt.Tooltip("line:N", title="part")]
    tips.append(alt.Tooltip("y:Q", title=unit, format=".4~g"))
    drawn = alt.Chart(alt.NamedData("numbers")).transform_filter(CHOSEN).mark_bar().add_params(CHOSEN)
    drawn = drawn.encode(value, y, alt.Order("place:Q"), tooltip=tips, **colour)
    layers: list[Any] = [drawn]
    if text:
        ends = alt.Chart(alt.NamedData("numbers")).transform_filter(f"isValid(datum.{text})")
        ends = ends.mark_text(align="left", dx=4, color=INK)
        layers.append(ends.encode(alt.X("end:Q"), y, text=f"{text}:N"))
    return Chart(name, alt.layer(*layers).properties(title=title, height=alt.Step(19)), frame, {"y": unit})


V8_BYTES = 80 * 2**30
"""Address space, not memory, that V8 reserves as it starts, with what the process has already."""


def check_address_space() -> None:
    """Raise OSError where V8, which draws, could not start: it would end the process."""
    limit, hard = resource.getrlimit(resource.RLIMIT_AS)
    if resource.RLIM_INFINITY != limit < V8_BYTES:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
            limit = hard
    if resource.RLIM_INFINITY != limit < V8_BYTES:
        raise OSError(
            f"figures cannot be drawn: `ulimit -v` allows {limit / 2**30:.0f} GiB of address space, and drawing "
            f"reserves {V8_BYTES / 2**30:.0f} (it uses far less): ulimit -v unlimited"
        )


@functools.cache
def vega_script() -> str:
    """Return Vega, Vega-Lite and Vega-Embed in one."""
    check_address_space()
    return str(vl_convert.javascript_bundle())  # type: ignore[call-arg]  # its stub lacks the default
