"""A page: an answer in sentences, then charts and tables, each with its numbers as files beside the page."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from sat_slime.config.jsonl import write_atomically
from sat_slime.config.method_section import method_label
from sat_slime.report.charts import LEGEND_COLUMNS, Chart, vega_script, write_csv
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.reading import section

DASH = "–"
"""Stands where there is no number."""
NBSP = "\N{NO-BREAK SPACE}"
Row = Mapping[str, Any]
Form = str | Callable[[Row], str]
"""How a column is written: as for `format`, `%` for a share in percent, or a function of the row."""


class Strong(str):
    """Text that stands out; as the first cell of a row, all of it does."""


@dataclass
class Section:
    """A part of a page; one with nothing beside its note is left out."""

    name: str
    heading: str
    note: str = ""
    charts: Sequence[Chart] = ()
    sentences: Sequence[str] = ()
    text: str = ""
    """Preformatted text."""
    folded: bool = False
    """Shown once its heading is clicked."""


@dataclass(kw_only=True)
class Table(Section):
    """A data frame, and how a page and a terminal show it. The CSV has all of the frame."""

    frame: pd.DataFrame
    forms: Mapping[str, Form]
    """{column of the frame, or heading of a function's texts: its form}, in the order shown; none: a CSV alone."""
    group: str = ""
    """A column whose value heads the rows that have it."""
    above: Sequence[tuple[str, int]] = ()
    """(heading, number of columns that it stands above), for the columns after the first."""
    most: int = 0
    """Rows that are shown at most, evenly chosen; 0: all."""

    def rows(self) -> Iterator[tuple[str, list[str]]]:
        """Yield (the heading that begins with this row, or none; the texts of its cells) of each row."""
        frame = self.frame
        if self.most and len(frame) > self.most:
            frame = frame.iloc[[round(i * (len(frame) - 1) / (self.most - 1)) for i in range(self.most)]]
        group = ""
        for row in frame.to_dict("records"):
            before, group = group, str(row[self.group]) if self.group else ""
            yield group if group != before else "", [as_text(row, name, form) for name, form in self.forms.items()]


def as_text(row: Row, name: str, form: Form) -> str:
    """Return a cell of a table: a text as it is, a dash for no number."""
    if callable(form):
        return form(row)
    value = row[name]
    if value is None or isinstance(value, str):
        return value or DASH
    if not math.isfinite(value):
        return DASH
    return percent(value) if form == "%" else minus(format(value, form))


def percent(share: float) -> str:
    """Return a share as `12.3 %`, what this would tell as none or all as `< 0.1 %`, `> 99.9 %`; a dash for none."""
    if 1e-9 < share < 5e-4:  # what is less is the rounding of a sum
        return f"< 0.1{NBSP}%"
    if 1 - 5e-4 <= share < 1 - 1e-9:
        return f"> 99.9{NBSP}%"
    # rounded first, so that there is no -0.0
    return minus(f"{round(float(share), 3) + 0.0:.1%}").replace("%", f"{NBSP}%") if math.isfinite(share) else DASH


def count_of(number: int, noun: str) -> str:
    """Return a count with its noun, as `1 step` and `1,024 steps`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def minus(number: str) -> str:
    """Return the text of a number with a minus sign in the place of a hyphen."""
    return number.replace("-", "−")


@dataclass
class Page:
    """A page that was written, for a terminal to tell too."""

    path: Path
    answer: list[str]
    warnings: list[str]
    sections: list[Section]

    def sentences(self, name: str) -> list[str]:
        """Return the sentences of a section; none of one that is not there."""
        return [sentence for part in self.sections if part.name == name for sentence in part.sentences]

    @property
    def tables(self) -> list[Table]:
        """Those sections that are tables."""
        return [part for part in self.sections if isinstance(part, Table)]


_TEMPLATE = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
_TEMPLATE.tests |= {"strong": lambda text: isinstance(text, Strong), "table": lambda part: isinstance(part, Table)}
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
"""A page asks nothing of a network, and runs no script but its own, whose digest is added."""
# ast: expressions are interpreted, so that the page needs no right to evaluate code
_DRAW = """
const draw = (target) => {
  seen.unobserve(target);
  const columns = (_, room) => Math.max(1, Math.floor((target.clientWidth - 60) / room));
  const text = target.nextElementSibling.textContent.replaceAll(/LEGEND_COLUMNS/g, columns);
  const actions = { export: true, source: false, compiled: false, editor: false };
  vegaEmbed(target, JSON.parse(text), { actions, ast: true, renderer: "svg", logLevel: 1 });
};
const near = (entries) => entries.filter((one) => one.isIntersecting).forEach((one) => draw(one.target));
const seen = new IntersectionObserver(near, { rootMargin: "600px" });
document.querySelectorAll(".chart").forEach((place) => seen.observe(place));
addEventListener("beforeprint", () => document.querySelectorAll(".chart:empty").forEach(draw));
"""


def write_page(
    path: Path,
    sections: Iterable[Section],
    *,
    title: str,
    subtitle: str,
    answer: Iterable[str],
    warnings: Iterable[str] = (),
    status: str = "",
    command: str = "",
) -> Page:
    """Write a page, figures/ and tables/ beside it. answer: sentences, the first of which is what the page says.
    warnings: what a reader should see first. status: stands beside the subtitle. command: makes the page again."""
    shown = [part for part in sections if part.charts or part.sentences or part.text or isinstance(part, Table)]
    page = Page(path, list(filter(None, answer)), list(warnings), shown)
    path.parent.mkdir(parents=True, exist_ok=True)
    specs = {}
    for chart in (chart for part in shown for chart in part.charts):
        spec = json.dumps(chart.spec(), ensure_ascii=False, separators=(",", ":"))
        specs[chart.name] = Markup(spec.replace("<", "\\u003c"))  # no text can end the element that holds it
        chart.save(path.parent / "figures")
    for table in page.tables:
        write_csv(table.frame, path.parent / "tables" / f"{table.name}.csv")
    draw = _DRAW.replace("LEGEND_COLUMNS", LEGEND_COLUMNS.replace("/", r"\/"))
    script = vega_script() + draw if specs else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = _TEMPLATE.get_template("page.html.j2").render(
        title=title,
        subtitle=subtitle,
        status=status,
        answer=page.answer,
        warnings=page.warnings,
        parts=shown,
        specs=specs,
        command=command,
        style=Markup(Path(__file__).with_name("page.css").read_text(encoding="utf-8")),
        policy=f"{_POLICY}; script-src 'sha256-{digest}'",
        script=Markup(script),
    )
    write_atomically(path, text)
    return page


def check_out(folder: Path, own: bool = False) -> None:
    """Raise RunFolderError where report.html must not be written to `folder`, since that holds something else. A report
    that was interrupted has its figures and tables. own: the folder is a run's or a grid's, and holds more."""
    page = folder / "report.html"
    if page.exists() and b"sat-slime" not in page.read_bytes():
        raise RunFolderError(f"{page} is no page of sat-slime: choose another folder by --out")
    if own or page.exists() or not folder.exists():
        return
    names = {file.name for file in folder.iterdir() if not file.name.endswith(".tmp")} if folder.is_dir() else {""}
    if names - {"figures", "tables"}:
        raise RunFolderError(f"{folder} exists and is no report: choose another --out")


def headline(config: Mapping[str, Any]) -> str:
    """Say in a line what a run with these settings is: method, lag and seed."""
    if not config:
        return "without its settings: there is no config.yaml that can be read"
    lag = section(config, "pipeline").get("lag")
    mode = "" if lag is None else " · synchronous" if lag == 0 else f" · lag {lag}"
    return f"{method_label(section(config, 'method'))}{mode} · seed {config.get('seed', '?')}"
