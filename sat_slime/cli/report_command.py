"""`sat-slime report`: the pages of a run, of several, or of a grid."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sat_slime.cli.terminal import warn


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_OR_GRID...",
            help="Run folders, grids, or files of slime's metrics; see docs/runs.md.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where a comparison goes; default: into the grid, else [bold]report/[/]."),
    ] = None,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="Of a comparison, add the paper's numbers and what of its table has not run."),
    ] = False,
) -> None:
    """Write report.html and figures of a run, of several, or of a grid, whatever there is of them.

    One run: what happened in it. Several, or a grid: their curves over each
    other, what differs beyond noise, and what the figures do not show.

        sat-slime report runs/quickstart

        sat-slime report grids/lab

        sat-slime report runs/gspo-lag8-seed* runs/sat-gspo-lag8-seed* --out comparison
    """
    from sat_slime.report.write_reports import write_reports
    from sat_slime.runs.folder import RunFolder
    from sat_slime.runs.reading import row_faults

    typer.echo(write_reports(paths, out, paper))
    for path in paths:
        for sentence in row_faults(RunFolder(path)) if RunFolder(path).is_run() else ():
            warn(f"{path}: {sentence}")
