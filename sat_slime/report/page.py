"""A page of a report: sentences, tables and figures, each with its files beside the page."""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from altair.utils.schemapi import debug_mode
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from sat_slime.config.disk import naming
from sat_slime.config.jsonl import write_atomically
from sat_slime.config.method_section import method_label
from sat_slime.report.drawing import Drawing
from sat_slime.report.figure_files import save, spec_of
from sat_slime.report.number_text import DASH, percent
from sat_slime.report.vega_script import vega_script
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.reading import section

_LIVE = Path(__file__).with_name("live.js")


def _style(name: str) -> str:
    return "\n" + Path(__file__).with_name(name).read_text(encoding="utf-8")


STYLE = _style("page.css")
"""The page of a single run: one column, with pictures as wide as the column."""
WIDE_STYLE = STYLE + _style("wide_page.css")
"""Every other page: wide tables and a list of contents."""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
"""A page asks nothing of a network, and runs no script but its own, whose digest is added."""


class Strong(str):
    """Text that stands out."""


class Heading(str):
    """First cell of a row that is the heading of the rows after it."""


@dataclass
class Sheet:
    """A table."""

    name: str
    heading: str
    sentence: str
    head: list[str]
    rows: list[list[str]]
    groups: list[tuple[str, int]] = field(default_factory=list)
    """(heading, number of columns that it stands above), for the columns after the first."""
    numbers: list[list[Any]] | None = None
    """Rows of the CSV, its head first. Default: the head and rows of the page."""
    words: bool = False
    """True where cells hold words, which wrap and begin at the left, instead of numbers."""

    @classmethod
    def of(
        cls, name: str, heading: str, sentence: str, head: Sequence[str], rows: Sequence[Sequence[Any]], forms: str
    ) -> Sheet:
        """Return the table of some numbers, which are those of its CSV.

        Args:
            rows: a label and numbers or texts each. One whose label is Strong stands out; a Heading stands alone, and
                on the page only.
            forms: how each column after the first is written, with spaces between: as for `format`, or % for percent.
        """
        texts: list[list[str]] = []
        for label, *values in rows:
            cells = [as_text(value, form) for value, form in zip(values, forms.split(), strict=bool(values))]
            texts.append([label, *(map(Strong, cells) if isinstance(label, Strong) else cells)])
        numbers = [list(row) for row in rows if not isinstance(row[0], Heading)]
        return cls(name, heading, sentence, list(head), texts, numbers=[list(head), *numbers])

    def save(self, folder: Path) -> None:
        """Write NAME.csv."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.csv"
        with naming(path), open(path, "w", newline="", encoding="utf-8") as file:
            rows = self.numbers or [self.head, *self.rows]
            csv.writer(file).writerows([[_plain(value) for value in row] for row in rows])

    def as_html(self) -> Markup:
        """Return the table alone; every text in it is escaped."""
        return Markup(_TEMPLATE.table(self))


def as_text(value: Any, form: str) -> str:
    """Return a cell of a table: a text as it is, a dash for no number. form: as `Sheet.of` takes it."""
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return DASH
    return percent(value) if form == "%" else format(value, form)


LONG = 40
"""Characters of a line in a cell beyond which it is wrapped; numbers with their intervals are shorter."""

_environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
_environment.tests |= {
    "heading": lambda text: isinstance(text, Heading),
    "strong": lambda text: isinstance(text, Strong),
    "long": lambda text: any(len(line) > LONG for line in text.splitlines()),
}
_TEMPLATE: Any = _environment.get_template("page.html.j2").module
"""Its macros return markup, in which every text is escaped."""


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.10g}" if math.isfinite(value) else ""
    # a name that begins like a formula is text to a spreadsheet too
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "@", "\t", "\r") else value


@dataclass(frozen=True)
class Figure:
    """A figure of the page."""

    name: str
    heading: str
    sentence: str
    draw: Callable[[], Drawing | None]


class Page:
    """A page in the making. What is added stands on it in that order; files are written at once, but those of figures
    in another thread, which does not hold up the drawing of the next: `write` waits for them."""

    def __init__(self, folder: Path):
        """folder: where figures/, tables/ and the page are written."""
        self._folder = folder
        self._contents: list[tuple[str, str]] = []
        self._body: list[str | Future[str]] = []
        self._files = ThreadPoolExecutor(1)
        self._live = False

    def add(self, markup: str) -> None:
        """Add HTML that the list of contents does not name; nothing where it is empty."""
        if markup:
            self._body.append(markup)

    def again(self, command: str) -> None:
        """Say by which command the page is made again."""
        self.add(f'<p class="files">This page again: <code>{html.escape(command)}</code></p>')

    def section(self, name: str, heading: str, markup: str) -> None:
        """Add a section. markup: HTML."""
        self._contents.append((name, heading))
        self._body.append(_TEMPLATE.section(name, heading, Markup(markup)))

    def sheet(self, sheet: Sheet) -> None:
        """Add a table, and write its CSV beside the page."""
        sheet.save(self._folder / "tables")
        self.section(sheet.name, sheet.heading, _TEMPLATE.sheet(sheet))

    def figure(self, figure: Figure) -> bool:
        """Add a figure, and write its files beside the page; nothing where it has no data. Returns whether it has."""
        with debug_mode(False):  # else Altair holds each part against its schema, which takes as long as the drawing
            drawing = figure.draw()
            if drawing is None:
                return False
            spec = spec_of(drawing)
        first, self._live = not self._live, True
        self._contents.append((figure.name, figure.heading))

        def with_picture() -> str:
            picture = base64.b64encode(save(spec, drawing.table, self._folder / "figures", figure.name)).decode()
            return str(_TEMPLATE.figure(figure, picture, Markup(_in_script(spec)), first))

        self._body.append(self._files.submit(with_picture))
        return True

    def write(
        self,
        file: str,
        *,
        title: str,
        subtitle: str,
        summary: Iterable[str],
        warnings: str = "",
        status: str = "",
        contents: bool = True,
        style: str = WIDE_STYLE,
    ) -> Path:
        """Write the page into its folder; returns its path.

        summary: sentences. warnings: HTML. status: stands beside the subtitle. contents: whether the page begins with
        a list of what is on it.
        """
        parts = [part.result() if isinstance(part, Future) else part for part in self._body]
        policy, script = _POLICY, ""
        if self._live:
            script = f"{vega_script()}\n{_LIVE.read_text(encoding='utf-8')}"
            digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            policy = f"{policy}; script-src 'sha256-{digest}'"
        text = _TEMPLATE.page(
            title,
            subtitle,
            status,
            summary,
            Markup(warnings),
            self._contents if contents else (),
            list(map(Markup, parts)),
            Markup(style),
            policy,
            Markup(script),
        )
        path = self._folder / file
        self._folder.mkdir(parents=True, exist_ok=True)  # a page without tables and figures has made none
        write_atomically(path, text)
        return path


def _in_script(spec: Mapping[str, Any]) -> str:
    """Return a specification as JSON in which no text can end the element that holds it. Data stand by columns, a
    column of few values as these and their numbers: a fifth as long as by rows."""
    datasets = {name: _by_columns(rows) for name, rows in spec["datasets"].items()}
    text = json.dumps({**spec, "datasets": datasets}, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _by_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, Any] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        number = {value: i for i, value in enumerate(dict.fromkeys(values))}
        few = len(number) < len(values) / 3
        columns[name] = {"of": list(number), "at": [number[value] for value in values]} if few else values
    return columns


def check_out(folder: Path) -> None:
    """Raise RunFolderError where report.html must not be written to `folder`, since that holds something else. A report
    that was interrupted has its figures and tables."""
    if not folder.exists() or (folder / "report.html").exists():
        return
    if not folder.is_dir() or {file.name for file in folder.iterdir()} - {"figures", "tables"}:
        raise RunFolderError(f"{folder} exists and is no report: choose another --out")


def listed(sentences: Iterable[str]) -> str:
    """Return the HTML of sentences as the items of a list."""
    return "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)


def warning_box(sentences: Iterable[str]) -> str:
    """Return the HTML of sentences that a reader should see first; empty where there are none."""
    items = listed(sentences)
    return f'<ul class="warnings">{items}</ul>' if items else ""


def headline(config: Mapping[str, Any]) -> str:
    """Say in a line what a run with these settings is: method, lag and seed."""
    lag = section(config, "pipeline").get("lag")
    mode = "" if lag is None else " · synchronous" if lag == 0 else f" · lag {lag}"
    return f"{method_label(section(config, 'method'))}{mode} · seed {config.get('seed', '?')}"
