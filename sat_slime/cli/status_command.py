"""`sat-slime status`: what is known of a run or a grid, whatever became of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sat_slime.cli.terminal import INTERRUPTED, short, sigterm_as_ctrl_c

if TYPE_CHECKING:
    from sat_slime.grid.entries import Entry


def status(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder, such as runs/my-run, or a grid's; of another folder, or without one of the current "
            "folder, all runs below it are listed.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Of a lab run or a grid: go on until it ends or Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the runs and their newest numbers as JSON.")] = False,
) -> None:
    """List the runs below a folder, or say how one is doing: its state, progress and newest checkpoint, and why it
    ended. Of a grid: all its cells.

    sat-slime status

    sat-slime status runs/my-run

    sat-slime status grids/my-grid --follow
    """
    from sat_slime.cli.grid_run.grid_status import show_grid
    from sat_slime.cli.lab_run.other_terminal import lab_status, watch
    from sat_slime.config import ConfigError, LabConfig, load_config
    from sat_slime.grid.state import GridFolder
    from sat_slime.runs.folder import RunFolder

    run = run or Path()
    alone = GridFolder(run).is_grid() or RunFolder(run).is_run()
    if as_json or (not alone and run.is_dir()):
        _list_runs(run, as_json, Console())
        return
    if GridFolder(run).is_grid():
        show_grid(GridFolder(run), follow, Console())
        return
    folder = RunFolder.open(run)
    config = load_config(folder.config)
    if isinstance(config, LabConfig):
        if follow:
            try:
                with sigterm_as_ctrl_c():
                    watch(folder, config, Console())
            except KeyboardInterrupt:
                raise typer.Exit(INTERRUPTED) from None
        lines = lab_status(folder, config)
    else:
        from sat_slime.cli.slime_run.sent_run import status_lines

        if follow:
            raise ConfigError([f"--follow is for lab runs and grids; of a run on slime: sat-slime logs {run} --follow"])
        lines = status_lines(run)
    for line in lines:
        typer.echo(line)


def _list_runs(folder: Path, as_json: bool, console: Console) -> None:
    """Print the runs and grids below a folder, the newest first. The runs of a grid stand below it."""
    from sat_slime.grid.entries import entries

    found = entries(folder)
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in found], indent=2, default=str))
        return
    if not found:
        typer.echo("no run and no grid is here; start one: sat-slime init quickstart, sat-slime launch quickstart.yaml")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold")
    for name in ("state", "step", "accuracy", "d_pi"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    table.add_column("started", no_wrap=True)
    table.add_column("report", overflow="fold")
    for entry in found:
        table.add_row(*map(Text, _cells(folder, entry)))  # a name is no markup
    (console if console.is_terminal else Console(width=160)).print(table)


def _cells(folder: Path, entry: Entry) -> Iterator[str]:
    path = str(short(folder / entry.path))
    yield path
    yield entry.status
    if entry.kind == "grid":
        yield f"{sum(run.status == 'finished' for run in entry.runs)} of {len(entry.runs)} runs"
    else:
        yield "–" if entry.step is None else f"{entry.step:g} of {entry.steps or '?'}"
    yield "–" if entry.accuracy is None else f"{entry.accuracy:.3f}"
    yield "–" if entry.d_pi is None else f"{entry.d_pi:.4f}"
    yield (entry.started or "never")[:16].replace("T", " ")
    yield f"{path}/report.html" if entry.report else "–"
