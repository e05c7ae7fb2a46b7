"""`sat-slime logs`: the log of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from sat_slime.cli.terminal import INTERRUPTED, RunArgument


def logs(
    run: RunArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends or Ctrl-C.")] = False,
) -> None:
    """Print the log of a run, of one on slime that of its job. Ctrl-C stops the printing; the run goes on.

    sat-slime logs runs/my-run -f
    """
    from sat_slime.cli.lab_run import log_of
    from sat_slime.config import ConfigError
    from sat_slime.runs.folder import RunFolder
    from sat_slime.runs.grid import GridFolder
    from sat_slime.runs.reading import is_lab

    if GridFolder(run).is_grid():
        cells = f"{run}/logs/CELL.txt, or sat-slime logs {run}/runs/CELL"
        raise ConfigError([f"{run} is a grid: the output of a cell is in {cells}"])
    folder = RunFolder.open(run)
    try:
        if is_lab(folder):
            log = log_of(folder, follow)
        else:
            from sat_slime.cli.slime_job import job_log

            log = job_log(run, follow)
        for line in log:
            typer.echo(line)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
