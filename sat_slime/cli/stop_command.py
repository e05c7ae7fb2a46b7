"""`sat-slime stop`: the end of a run or a grid, from any terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sat_slime.cli.terminal import finish


def stop(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run folder, such as runs/my-run, or a grid's, such as grids/my-grid.", show_default=False
        ),
    ],
    now: Annotated[
        bool, typer.Option("--now", help="Not after the iteration and a checkpoint, but at once, as Ctrl-C twice.")
    ] = False,
) -> None:
    """End a run or a grid as Ctrl-C in its terminal does: after the iteration, with a checkpoint.

    Of a run on slime the job ends, and the Ray that was started for it, at
    once: what came after the newest checkpoint is lost. Nothing else is
    touched, and [bold]launch RUN --resume[/] or [bold]grid[/] goes on.
    """
    from sat_slime.cli.lab_run import stop_run
    from sat_slime.runs.folder import RunFolder
    from sat_slime.runs.grid import GridFolder
    from sat_slime.runs.reading import is_lab

    console = Console()
    if GridFolder(run).is_grid():
        ending = stop_run(run, GridFolder(run).lock.holder(), now, console)
    elif is_lab(folder := RunFolder.open(run)):
        ending = stop_run(run, folder.holder(), now, console)
    else:
        from sat_slime.cli.slime_job import stop_job

        ending = stop_job(run, console)
    finish(ending, console)
