"""`sat-slime status`: what is known of a run or a grid, whatever became of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sat_slime.cli.embedded_run.other_terminal import watch
from sat_slime.cli.grid_run.grid_plan import grid_outlook, plan_grid, sizes
from sat_slime.cli.run_words import status_lines
from sat_slime.cli.terminal import INTERRUPTED, keys_unseen, short, sigterm_as_ctrl_c
from sat_slime.config import ConfigError, EmbeddedConfig, load_config
from sat_slime.embedded.checkpoint import newest
from sat_slime.grid.progress import ProgressReader
from sat_slime.grid.state import GridFolder
from sat_slime.grid.view import GridSight
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.rows import read_rows


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
    if GridFolder(run).is_grid():
        _show_grid(GridFolder(run), follow, Console())
        return
    if follow:
        _watch(run)
    for line in run_lines(run):
        typer.echo(line)


PLAIN_WIDTH = 120
"""Columns of the table where there is no terminal."""
FOLLOW_S = 2.0
"""Seconds between looks at a grid that another process runs."""


def _show_grid(folder: GridFolder, follow: bool, console: Console) -> None:
    """The table of a grid, whoever runs it; with `follow` until nobody does, or Ctrl-C."""
    plan = plan_grid(folder.config, None, (), (), ())
    reader = ProgressReader(folder)

    def sight() -> RenderableType:
        states = folder.observed()
        of_now = GridSight(
            f"grid {folder.path.name}",
            states,
            list(plan.configs),
            sizes(plan.configs),
            reader,
            grid_outlook(plan, states, reader, plan.grid.parallel),
        )
        running = "running" if folder.is_running() else f"not running: sat-slime grid {folder.path} goes on with it"
        if all(state.state == "finished" for state in states):
            running = "done"
        rows = max(3, console.height - 5) if follow else None
        return Group(Text(f"{of_now.name}, {running}"), Text(of_now.headline()), Text(""), of_now.table(rows))

    if not follow:
        (console if console.is_terminal else Console(width=PLAIN_WIDTH)).print(sight())
        return
    with Live(sight(), console=console, auto_refresh=False) as live:
        while folder.is_running():
            time.sleep(FOLLOW_S)
            live.update(sight(), refresh=True)


def _watch(path: Path) -> None:
    """The view of an embedded run, as in its own terminal. Raises ConfigError for another run."""
    folder = RunFolder.open(path)
    config = load_config(folder.config)
    if not isinstance(config, EmbeddedConfig):
        raise ConfigError(
            [f"--follow is for embedded runs and grids; of a run on slime: sat-slime logs {path} --follow"]
        )
    try:
        with sigterm_as_ctrl_c(), keys_unseen():
            watch(folder, config, Console())
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def run_lines(path: Path) -> list[str]:
    """What is known of a run, a line each: by its folder alone, or by its cluster too. Raises RunFolderError,
    ConfigError or JobError."""
    folder = RunFolder.open(path)
    config = load_config(folder.config)
    if isinstance(config, EmbeddedConfig):
        return _embedded_lines(folder, config)
    from sat_slime.cli.slime_run.sent_run import status_lines

    return status_lines(path)


def _embedded_lines(folder: RunFolder, config: EmbeddedConfig) -> list[str]:
    """What the folder of an embedded run tells, a line each."""
    noted, saved, rows = folder.state(), newest(folder.checkpoints), read_rows(folder.metrics)
    status = noted.get("status")
    state = f"running (process {noted.get('pid')})" if status == "running" else status or "not started"
    lines = status_lines(config, state, noted, rows[-1] if rows else {}, saved.name if saved else None)
    if noted.get("error"):
        lines.append(f"error       {noted['error']}")
    if status not in ("running", "finished"):
        lines.append(f"go on with  sat-slime launch {short(folder.path)} --resume")
    return lines
