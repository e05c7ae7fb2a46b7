"""What the larger pages are made of: tables and figures, each with its files beside the page."""

from __future__ import annotations

import base64
import csv
import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sat_slime.config.disk import naming
from sat_slime.report.drawing import Drawing, save


class Strong(str):
    """Text that stands out."""


class Heading(str):
    """First cell of a row that heads those below it."""


@dataclass
class Sheet:
    """A table."""

    name: str
    heading: str
    sentence: str
    head: list[str]
    rows: list[list[str]]
    groups: list[tuple[str, int]] = field(default_factory=list)
    """(heading, columns) above the columns after the first."""
    numbers: list[list[Any]] | None = None
    """Rows of the CSV, its head first; the text where there are none."""

    def save(self, folder: Path) -> None:
        """NAME.csv."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.csv"
        with naming(path), open(path, "w", newline="", encoding="utf-8") as file:
            rows = self.numbers or [self.head, *self.rows]
            csv.writer(file).writerows([[_plain(value) for value in row] for row in rows])

    def as_html(self) -> str:
        """The table itself; every text in it is escaped."""
        top = "".join(f'<th colspan="{width}" class="group">{html.escape(text)}</th>' for text, width in self.groups)
        head = "".join(f"<th>{html.escape(text)}</th>" for text in self.head)
        body = "".join(_html_row(row) for row in self.rows)
        return f"<table>{f'<tr><th></th>{top}</tr>' if top else ''}<tr class='head'>{head}</tr>{body}</table>"


def _html_row(row: Sequence[str]) -> str:
    if isinstance(row[0], Heading):
        return f'<tr class="part"><th colspan="{len(row)}">{html.escape(row[0])}</th></tr>'
    cells = (f"<strong>{html.escape(c)}</strong>" if isinstance(c, Strong) else html.escape(c) for c in row[1:])
    return f'<tr><th scope="row">{html.escape(row[0])}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.10g}" if math.isfinite(value) else ""
    # a name that begins like a formula is text to a spreadsheet too
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "@", "\t") else value


@dataclass(frozen=True)
class Figure:
    """A figure of the page."""

    name: str
    heading: str
    sentence: str
    draw: Callable[[], Drawing | None]


def sheet_html(sheet: Sheet, folder: Path, contents: list[tuple[str, str]]) -> str:
    """A section of the page, its CSV written beside; adds itself to the contents."""
    sheet.save(folder / "tables")
    contents.append((sheet.name, sheet.heading))
    return (
        f'<section id="{html.escape(sheet.name)}"><h2>{html.escape(sheet.heading)}</h2>'
        f'<p>{html.escape(sheet.sentence)}</p><div class="wide">{sheet.as_html()}</div>'
        f'<p class="files"><a href="tables/{html.escape(sheet.name)}.csv">numbers</a></p></section>'
    )


def figure_html(figure: Figure, folder: Path, contents: list[tuple[str, str]], command: str = "") -> str:
    """A figure of the page, its files written beside; adds itself to the contents. Empty where it has no data.

    command: what draws this figure alone, where something does.
    """
    drawing = figure.draw()
    if drawing is None:
        return ""
    picture = base64.b64encode(save(drawing, folder / "figures", figure.name)).decode()
    name, heading = html.escape(figure.name), html.escape(figure.heading)
    contents.append((figure.name, figure.heading))
    files = " · ".join(f'<a href="figures/{name}.{kind}">{text}</a>' for kind, text in _FILES)
    alone = f'<p class="files"><code>{html.escape(command)}</code></p>' if command else ""
    return (
        f'<figure id="{name}"><h2>{heading}</h2><p>{html.escape(figure.sentence)}</p>'
        f'<img alt="{heading}" src="data:image/svg+xml;base64,{picture}"><figcaption>{files}</figcaption>'
        f"{alone}</figure>"
    )


_FILES = (("csv", "numbers"), ("png", "PNG"), ("svg", "SVG"))
