"""`sat-slime diagnose`: the mismatch of a run taken apart, in the terminal and as a page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from sat_slime.report.diagnosis.page import write_diagnosis
from sat_slime.report.page import Heading, Sheet, Strong


def diagnose(run: Path, console: Console) -> None:
    """Writes RUN/diagnosis/ and prints what it says. Raises RunFolderError."""
    found = write_diagnosis(run)
    for sentence in found.warnings:
        console.print(f"warning: {sentence}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    for sentence in found.findings:
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    for sheet in found.sheets:
        console.print()
        console.print(as_table(sheet))
    console.print()
    console.print(f"page: {found.page}", markup=False, highlight=False, soft_wrap=True)


def as_table(sheet: Sheet) -> Table:
    """A sheet for the terminal."""
    table = Table(title=sheet.heading, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, name in enumerate(sheet.head):
        table.add_column(name, justify="right" if index else "left", no_wrap=not index)
    for row in sheet.rows:
        if isinstance(row[0], Heading):
            table.add_row(row[0])
        else:
            table.add_row(*row, style="bold" if isinstance(row[0], Strong) else None)
    return table
