"""`sat-slime status`: what is known of a run or a grid, whatever became of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sat_slime.cli.terminal import INTERRUPTED, keys_unseen, short, sigterm_as_ctrl_c, without_traceback

if TYPE_CHECKING:
    from sat_slime.config import EmbeddedConfig
    from sat_slime.runs.folder import RunFolder


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
    with without_traceback():
        from sat_slime.grid.state import GridFolder

        if GridFolder(run).is_grid():
            from sat_slime.cli.grid_run.grid_status import show_status

            show_status(GridFolder(run), follow, Console())
            return
        if follow:
            _watch(run)
        for line in run_lines(run):
            typer.echo(line)


def _watch(path: Path) -> None:
    """The view of an embedded run, as in its own terminal. Raises ConfigError for another run."""
    from sat_slime.cli.embedded_run.other_terminal import watch
    from sat_slime.config import ConfigError, EmbeddedConfig, load_config
    from sat_slime.runs.folder import RunFolder

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
    from sat_slime.cli.slime_run.sent_run import status_lines
    from sat_slime.config import EmbeddedConfig, load_config
    from sat_slime.runs.folder import RunFolder

    folder = RunFolder.open(path)
    config = load_config(folder.config)
    return _embedded_lines(folder, config) if isinstance(config, EmbeddedConfig) else status_lines(path)


def _embedded_lines(folder: RunFolder, config: EmbeddedConfig) -> list[str]:
    """What the folder of an embedded run tells, a line each."""
    from sat_slime.cli.slime_run.sent_run import progress
    from sat_slime.config import method_label
    from sat_slime.embedded.checkpoint import newest
    from sat_slime.runs.rows import read_rows

    noted, saved = folder.state(), newest(folder.checkpoints)
    status = noted.get("status")
    pipeline = config.pipeline
    rows = read_rows(folder.metrics)
    steps = pipeline.iterations * pipeline.optimizer_steps_per_rollout
    ended = noted.get("ended") if status not in ("running", "killed") else None
    lines = [
        f"run         {config.name}: {method_label(config.method.model_dump())}, lag {pipeline.lag}",
        f"state       {status or 'not started'}" + (f" (process {noted.get('pid')})" if status == "running" else ""),
        f"started     {noted.get('last_started', 'never')}" + (f", ended {ended}" if ended else ""),
        f"progress    {progress(rows[-1] if rows else {}, steps)}",
        f"checkpoint  {saved.name if saved else 'none yet'}",
    ]
    if noted.get("error"):
        lines.append(f"error       {noted['error']}")
    if status not in ("running", "finished"):
        lines.append(f"go on with  sat-slime launch {short(folder.path)} --resume")
    return lines
