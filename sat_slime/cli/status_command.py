"""`sat-slime status`: what is known of a run or a grid, whatever became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sat_slime.cli.terminal import INTERRUPTED, keys_unseen, sigterm_as_ctrl_c


def status(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run folder, such as runs/my-run, or a grid's, such as grids/my-grid.", show_default=False
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Of an embedded run or a grid: go on until it ends or Ctrl-C.")
    ] = False,
) -> None:
    """Say how a run is doing: its state, progress and newest checkpoint, and why it ended. Of a grid: all its cells.

    sat-slime status runs/my-run

    sat-slime status grids/my-grid --follow
    """
    from sat_slime.cli.embedded_run.other_terminal import embedded_status, watch
    from sat_slime.cli.grid_run.grid_status import show_grid
    from sat_slime.config import ConfigError, EmbeddedConfig, load_config
    from sat_slime.grid.state import GridFolder
    from sat_slime.runs.folder import RunFolder

    if GridFolder(run).is_grid():
        show_grid(GridFolder(run), follow, Console())
        return
    folder = RunFolder.open(run)
    config = load_config(folder.config)
    if isinstance(config, EmbeddedConfig):
        if follow:
            try:
                with sigterm_as_ctrl_c(), keys_unseen():
                    watch(folder, config, Console())
            except KeyboardInterrupt:
                raise typer.Exit(INTERRUPTED) from None
        lines = embedded_status(folder, config)
    else:
        from sat_slime.cli.slime_run.sent_run import status_lines

        if follow:
            raise ConfigError(
                [f"--follow is for embedded runs and grids; of a run on slime: sat-slime logs {run} --follow"]
            )
        lines = status_lines(run)
    for line in lines:
        typer.echo(line)
