"""`sat-slime diagnose`: the mismatch of a run taken apart, in the terminal and as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from sat_slime.cli.terminal import RunArgument, without_traceback

if TYPE_CHECKING:
    from sat_slime.report.diagnosis.page import Diagnosis
    from sat_slime.report.page import Sheet


def diagnose(run: RunArgument) -> None:
    """Say what the mismatch of a run is made of, and where its tail comes from.

    From the token dumps of diagnosed steps ([bold]--set
    diagnose.every_n_steps=5[/] at launch): policy lag, expert routing,
    precision and the rest, by lag, position, probability and entropy; the
    improvement bound; the true total variation beside the sampled ratio. Of a
    run of slime with denominator checkpoint, policy and implementation part.
    Page, figures and tables go to [bold]RUN/diagnosis/[/].

        sat-slime diagnose runs/my-run
    """
    with without_traceback():
        from sat_slime.report.diagnosis.page import write_diagnosis

        _show(write_diagnosis(run), Console())


def _show(found: Diagnosis, console: Console) -> None:
    """Print what the page says."""
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
    """A sheet as a table for the terminal."""
    from sat_slime.report.page import Heading, Strong

    table = Table(title=sheet.heading, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, name in enumerate(sheet.head):
        table.add_column(name, justify="right" if index else "left", no_wrap=not index)
    for row in sheet.rows:
        if isinstance(row[0], Heading):
            table.add_row(row[0])
        else:
            table.add_row(*row, style="bold" if isinstance(row[0], Strong) else None)
    return table
