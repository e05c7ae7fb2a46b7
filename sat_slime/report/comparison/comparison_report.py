"""The report of several runs or of a grid: one page, and figures and tables beside it as files."""

from __future__ import annotations

import html
import shlex
from collections.abc import Sequence
from pathlib import Path

from sat_slime.grid.state import GridFolder
from sat_slime.report.comparison import grid_report
from sat_slime.report.comparison.compared_runs import collect
from sat_slime.report.comparison.contrasts import Comparison
from sat_slime.report.comparison.paper_numbers import SOURCE
from sat_slime.report.comparison.statistics import TEST
from sat_slime.report.page import Page, check_out, draw_alone
from sat_slime.runs import collapse
from sat_slime.runs.folder import RunFolderError, writable


def write_comparison(
    paths: Sequence[str | Path], out: str | Path | None = None, only: Sequence[str] = (), paper: bool = False
) -> list[Path]:
    """Write report.html, figures/ and tables/ about `paths`; returns the page or the pictures to look at.

    out: folder to write to. Default: the grid itself where a single one is given, else `report`.
    only: names of figures; only these are drawn then, and the page is left as it is. paper: whether the paper's numbers
    stand beside those of the runs.

    Raises:
        RunFolderError: a path without runs, an unknown figure, a figure without data, or a folder of something else.
    """
    folder = _folder(paths, out)
    comparison = _comparison(paths, paper)
    with writable(folder):
        if only:
            return draw_alone(list(grid_report.figures(comparison)), only, folder)
        return [_write_page(comparison, paths, folder)]


def _folder(paths: Sequence[str | Path], out: str | Path | None) -> Path:
    if out is None and len(paths) == 1 and GridFolder(paths[0]).is_grid():
        return Path(paths[0])
    folder = Path(out) if out is not None else Path("report")
    check_out(folder)
    return folder


def _comparison(paths: Sequence[str | Path], paper: bool) -> Comparison:
    collection = collect(paths)
    if not collection.runs and not collection.planned:
        raise RunFolderError(f"{paths[0]} holds no run yet: there is nothing to report")
    return Comparison(collection, paper)


def _write_page(comparison: Comparison, paths: Sequence[str | Path], folder: Path) -> Path:
    command = "sat-slime report " + shlex.join(map(str, paths))
    if len(paths) > 1 or folder != Path(paths[0]):
        command += f" --out {shlex.quote(str(folder))}"
    if comparison.paper:
        command += " --paper"
    page = Page(folder)
    rules = _rules(command, f"<p>Paper: {html.escape(SOURCE)}.</p>" if comparison.paper else "")
    subtitle, summary = grid_report.fill(page, comparison, command, rules)
    name = Path(paths[0]).resolve().name
    others = [Path(path).resolve().name for path in paths[1:]]
    title = " · ".join([name, *others]) if len(others) < 3 else f"{name} and {len(others)} more"
    return page.write("report.html", title=title, subtitle=subtitle, summary=summary)


def _rules(command: str, more: str = "") -> str:
    """Return the HTML of what is tested and by which rules. more: HTML."""
    test, rule = f"Differences: {TEST}.", str(collapse.__doc__).strip().replace("**", "")
    again = f"<p>This page again: <code>{html.escape(command)}</code></p>"
    return f"<p>{html.escape(test)}</p><pre>{html.escape(rule)}</pre>{more}{again}"
