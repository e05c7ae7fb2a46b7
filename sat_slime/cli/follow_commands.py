"""`sat-slime status` and `stop`: what is known of a run or a grid, and its end, from any terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from sat_slime.cli.terminal import INTERRUPTED, finish, short, sigterm_as_ctrl_c

if TYPE_CHECKING:
    from sat_slime.runs.grid import GridFolder

DEPTH = 4
"""Folders below the first one that are looked into."""
FOLLOW_S = 2.0
"""Seconds between looks at a grid that another process runs."""
PLAIN_WIDTH = 160
"""Columns of a table where there is no terminal."""


def status(
    run: Annotated[
        Path | None,
        Argument(
            help="A run folder, such as runs/my-run, or a grid's; of another folder, or without one of the current "
            "folder, all runs below it are listed."
        ),
    ] = None,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Show what happens until it ends or Ctrl-C; the run goes on.")
    ] = False,
) -> None:
    """List the runs below a folder, or say how one is doing: state, progress, newest checkpoint, why it ended.

    Of a grid it tells all cells.

    sat-slime status

    sat-slime status runs/my-run

    sat-slime status runs/my-run --follow

    --follow prints the log of a lab run, of one on slime a line per step; the
    whole log of a job is in log.txt of the run's folder.
    """
    from sat_slime.cli.lab_run import lab_status, log_of
    from sat_slime.config import LabConfig, load_config
    from sat_slime.runs.folder import RunFolder
    from sat_slime.runs.grid import GridFolder

    run, console = run or Path(), Console()
    tables = console if console.is_terminal else Console(width=PLAIN_WIDTH)
    if GridFolder(run).has_begun():
        _show_grid(GridFolder(run), follow, tables)
        return
    if run.is_dir() and not RunFolder(run).is_run():
        if rows := list(_below(run, DEPTH)):
            tables.print(_table(rows))
        else:
            start = "sat-slime init quickstart, sat-slime launch quickstart.yaml"
            typer.echo(f"no run and no grid is here; start one: {start}")
        return
    folder = RunFolder.open(run)
    config = load_config(folder.config)
    try:
        with sigterm_as_ctrl_c():
            if isinstance(config, LabConfig):
                for text in log_of(folder) if follow else ():
                    typer.echo(text)
                lines = lab_status(folder, config)
            else:
                from sat_slime.cli.slime_run import job_status

                lines = job_status(run, console if follow else None)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    typer.echo("\n".join(lines))


def _show_grid(folder: GridFolder, follow: bool, console: Console) -> None:
    """Show how far a grid is, whoever runs it, and its runs; with `follow` until nobody runs it, or Ctrl-C."""
    from sat_slime.cli.grid_run import GridPlan, headline, plan_grid, remark
    from sat_slime.config import ConfigError
    from sat_slime.runs.folder import RunFolder

    plan: GridPlan | None = None
    with suppress(ConfigError):  # its base has changed, or is one that a command which reads does not import
        plan = plan_grid(folder.config)

    def shown() -> RenderableType:
        resume = f"sat-slime grid {short(folder.path)}"
        goes_on = "running" if folder.lock.is_held() else f"not running: {resume} goes on with it"
        if plan is None:
            far, remarks = "", {path.name: RunFolder(path).state().get("error") for path in _folders(folder.runs)}
        else:
            far, remarks = headline(plan), {cell.name: remark(plan, cell) for cell in plan.configs}
            if all(folder.state(cell) == "finished" for cell in plan.configs):
                goes_on = "done"
        told = (Text(f"{name}: {text}") for name, text in remarks.items() if text)
        return Group(Text(f"grid {folder.path.name}, {goes_on}\n{far}"), _table(_below(folder.runs, 1)), *told)

    if not follow:
        console.print(shown())
        return
    with Live(shown(), console=console, auto_refresh=False) as live:
        while folder.lock.is_held():
            time.sleep(FOLLOW_S)
            live.update(shown(), refresh=True)


def _table(rows: Iterable[tuple[str, Path, list[str]]]) -> Table:
    """Return a table of what `_below` yields, the newest first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold")
    for name in ("state", "step", "reward", "d_pi", "accuracy", "started (UTC)"):
        table.add_column(name, justify="left" if name.startswith("sta") else "right", no_wrap=True)
    for started, path, cells in sorted(rows, key=lambda row: row[0], reverse=True):
        shown = [short(path), *cells, started[:16].replace("T", " ") or "–"]
        table.add_row(*map(Text, shown))  # a name is no markup
    return table


def _below(folder: Path, depth: int) -> Iterator[tuple[str, Path, list[str]]]:
    """Yield (newest start, folder, columns) of each run and grid; the runs of a grid are in it alone. A damaged one
    must not hide the others."""
    from sat_slime.runs.folder import RunFolder
    from sat_slime.runs.grid import GridFolder
    from sat_slime.runs.reading import newest_numbers, read_yaml

    grid, run = GridFolder(folder), RunFolder(folder)
    try:
        if grid.has_begun():
            states = [RunFolder(path).state() for path in _folders(grid.runs)]
            finished = sum(state.get("status") == "finished" for state in states)
            shown = "running" if grid.lock.is_held() else "not running"
            started = max((str(state.get("last_started") or "") for state in states), default="")
            planned = read_yaml(grid.config)
            runs = math.prod(len(planned.get(axis) or ()) for axis in ("methods", "lags", "seeds")) or len(states)
            yield started, folder, [shown, f"{finished} of {runs} runs", "", "", ""]
        elif run.is_readable():
            state = run.state()
            cells = [str(state.get("status", "unknown")), *newest_numbers(run).values()]
            yield str(state.get("last_started") or ""), folder, cells
        elif depth:
            for child in _folders(folder):
                yield from _below(child, depth - 1)
    except OSError:  # gone meanwhile, or not ours to read
        return
    except Exception as error:
        yield "", folder, [f"damaged: {type(error).__name__}: {error}", "", "", "", ""]


def _folders(folder: Path) -> list[Path]:
    with suppress(OSError):  # gone meanwhile, or not ours to read
        children = (child for child in folder.iterdir() if child.is_dir() and not child.is_symlink())
        return sorted(child for child in children if not child.name.startswith("."))
    return []


def stop(
    run: Annotated[Path, Argument(help="A run folder, such as runs/my-run, or a grid's, such as grids/my-grid.")],
    now: Annotated[
        bool, Option("--now", help="Not after the iteration and a checkpoint, but at once, as Ctrl-C twice.")
    ] = False,
) -> None:
    """End a run or a grid as Ctrl-C in its terminal does: after the iteration, with a checkpoint.

    Of a run on slime the job ends, and the Ray that was started for it, at
    once: what came after the newest checkpoint is lost. Jobs of a grid's
    cells go on, and are named. Nothing else is touched, and
    [bold]launch RUN --resume[/] or [bold]grid[/] goes on.
    """
    from sat_slime.cli.lab_run import stop_run
    from sat_slime.cli.slime_run import newest_state, still_there, stop_job
    from sat_slime.runs.folder import RunFolder
    from sat_slime.runs.grid import GridFolder
    from sat_slime.runs.reading import is_lab

    console = Console()
    grid = GridFolder(run)
    if grid.is_grid() or is_lab(RunFolder.open(run)):
        ending = stop_run(run, now, console)
        for folder in map(RunFolder, _folders(grid.runs)):
            if "job" in folder.state() and (told := still_there(newest_state(folder), folder.path)):
                typer.echo(told)
        finish(ending, console)
    finish(stop_job(run, console), console)
