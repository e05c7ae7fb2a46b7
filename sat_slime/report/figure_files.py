"""A figure as a specification for a page, and as files: PNG, SVG and the CSV of its numbers."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import vl_convert

from sat_slime.config.disk import naming
from sat_slime.report.drawing import Drawing, Table, quiet
from sat_slime.report.looks import BLACK, LINE
from sat_slime.report.vega_script import check_address_space

WIDTH = 640
"""Pixels: how wide the files are. On a page a figure is as wide as its place."""
PANEL_WIDTH = WIDTH - 80
"""Pixels: of a panel that has its row of a file to itself."""
CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "padding": 2,
    "view": {"stroke": None, "continuousWidth": PANEL_WIDTH, "discreteWidth": PANEL_WIDTH},
    "mark": {"color": BLACK, "tooltip": None},
    "line": {"strokeWidth": LINE},
    "text": {"color": BLACK, "fontSize": 11},
    "bar": {"stroke": BLACK, "strokeWidth": 0.4},
    "axis": {
        "labelColor": BLACK,
        "titleColor": BLACK,
        "domainColor": BLACK,
        "tickColor": BLACK,
        "gridColor": BLACK,
        "domainOpacity": 0.6,
        "tickOpacity": 0.6,
        "gridOpacity": 0.13,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 170,
        "labelOverlap": True,
        "labelFlush": False,
    },
    "legend": {
        "labelColor": BLACK,
        "labelFontSize": 12,
        "labelLimit": {"expr": "room - 60"},
        "titleColor": BLACK,
        "offset": 4,
    },
    "header": {"labelColor": BLACK, "labelFontSize": 11},
    "facet": {"spacing": 14},
    "title": {
        "anchor": "start",
        "limit": {"expr": "room - 75"},
        "color": BLACK,
        "fontSize": 13,
        "fontWeight": 600,
        "offset": 6,
        "frame": "group",
    },
}
"""The theme of all figures. `currentColor` is the text's colour, which is light on a dark page."""


def spec_of(drawing: Drawing) -> dict[str, Any]:
    """Return the figure as a Vega-Lite specification."""
    with quiet():
        spec: dict[str, Any] = drawing.chart.to_dict(validate=False)
    params = [*spec.get("params", ()), {"name": "room", "value": WIDTH}]
    return spec | {"config": CONFIG, "params": params, "usermeta": {"columns": drawing.columns}}


def save(spec: Mapping[str, Any], table: Table, folder: Path, name: str) -> bytes:
    """Write NAME.png, NAME.svg and NAME.csv into `folder`; returns the SVG. An OSError names the folder at least.

    spec: as `spec_of` gives it. table: the figure's numbers.
    """
    check_address_space()
    still = _still(spec)
    svg = _shortened(_numbered_anew(vl_convert.vegalite_to_svg(still)))
    png = vl_convert.svg_to_png(svg, scale=2)
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.png").write_bytes(png)
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
        _write_table(table, folder / f"{name}.csv")
    return svg.encode()


def _still(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification for a file: white behind, at its own width, and nothing that only a pointer finds."""
    config = json.loads(json.dumps(CONFIG))
    config |= {"background": "white", "aria": False}  # a description of each mark is most of a file
    for side in ("continuousWidth", "discreteWidth"):
        config["view"][side] = PANEL_WIDTH / spec["usermeta"]["columns"]
    still: dict[str, Any] = _without_pointed(spec) | {"config": config}
    return still


def _without_pointed(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _without_pointed(value) for name, value in part.items()}
    if isinstance(part, list):
        return [_without_pointed(item) for item in part if not (isinstance(item, dict) and _is_pointed(item))]
    return part


def _is_pointed(layer: Mapping[str, Any]) -> bool:
    mark = layer.get("mark")
    return isinstance(mark, dict) and mark.get("style") == "pointed"


def _numbered_anew(svg: str) -> str:
    """Number clip paths and gradients anew: Vega counts them over all figures of a process, and equal data shall give
    equal files."""
    seen: dict[str, str] = {}
    return re.sub(r"\b(clip|gradient_)\d+\b", lambda m: seen.setdefault(m[0], f"{m[1]}{len(seen)}"), svg)


def _shortened(svg: str) -> str:
    """Cut coordinates to a tenth of a pixel."""
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), svg)


def _write_table(table: Table, path: Path) -> None:
    length = max((len(values) for values in table.values()), default=0)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        for row in range(length):
            writer.writerow([_cell(values, row) for values in table.values()])


def _cell(values: np.ndarray, row: int) -> str:
    if values.dtype.kind == "U":
        return str(values[row]) if row < len(values) else ""
    return f"{values[row]:.10g}" if row < len(values) and np.isfinite(values[row]) else ""
