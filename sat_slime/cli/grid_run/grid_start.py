"""The cells of a grid run one after another or side by side, each as a command of its own."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from sat_slime.cli.grid_run.cells import Cells
from sat_slime.cli.grid_run.fork_servers import fork_servers
from sat_slime.cli.grid_run.grid_plan import GridPlan, grid_outlook, sizes
from sat_slime.cli.lab_run import engine_packages
from sat_slime.cli.terminal import Ending
from sat_slime.config import ConfigError, LabConfig
from sat_slime.config.disk import disk_is_full
from sat_slime.grid.progress import ProgressReader
from sat_slime.grid.runner import GridRun
from sat_slime.grid.state import CellState
from sat_slime.grid.view import GridStatus, LiveGridView, PlainGridView
from sat_slime.runs.folder import writable


def run_grid(plan: GridPlan, retry_failed: bool, options: Sequence[str], live: bool | None, console: Console) -> Ending:
    """Run the chosen cells to their end, or until Ctrl-C. Raises ConfigError or RunFolderError when it cannot start.

    options: further options of `sat-slime launch`, for runs of slime.
    """
    _check_options(plan, options)
    if isinstance(plan.run, LabConfig) and (missing := engine_packages.missing_engines()):
        raise ConfigError([f"the lab runtime needs {', '.join(missing)}: {engine_packages.INSTALL_ENGINES}"])
    with _begun(plan) as states:
        queue = _queue(plan, states, retry_failed)
        try:
            with _forking(plan, len(queue)) as environment:
                _run(plan, states, queue, Cells(plan, options, environment), live, console)
        except OSError as error:
            if not disk_is_full(error):
                raise
            remedy = f"free space and go on with: sat-slime grid {plan.folder.path}"
            return Ending("failed", None, f"{error.filename or plan.folder.path}: {error.strerror}; {remedy}")
    return _ending(plan, states)


def commands(plan: GridPlan, retry_failed: bool, options: Sequence[str]) -> list[str]:
    """Return a `sat-slime launch` for each chosen cell that is neither finished nor being run, quoted for a shell, and
    write the files that they name. Raises ConfigError or RunFolderError.

    options: as of `run_grid`.
    """
    _check_options(plan, options)
    cells, lines = Cells(plan, options), []
    with _begun(plan) as states:
        for state in _queue(plan, states, retry_failed):
            cells.settle(state)
            if plan.folder.run_folder(state).state().get("status") not in ("finished", "running"):
                lines.append(shlex.join(["sat-slime", *cells.arguments(state)]))
    return lines


def _check_options(plan: GridPlan, options: Sequence[str]) -> None:
    if isinstance(plan.run, LabConfig) and options:
        raise ConfigError([f"{options[0]} is for runs of slime, and these are lab runs: leave it out"])


@contextlib.contextmanager
def _begun(plan: GridPlan) -> Iterator[list[CellState]]:
    """Hold the grid's folder, which says what the grid is made of; yields the states of its cells."""
    folder = plan.folder
    with contextlib.ExitStack() as undo:
        with writable(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.lock()
            undo.callback(folder.unlock)
            states = folder.begin(plan.grid, plan.run)
        yield states


def _queue(plan: GridPlan, states: Sequence[CellState], retry_failed: bool) -> list[CellState]:
    """Return the cells that are still to run, in their order."""
    chosen = set(plan.wanted)
    queue = []
    for state in states:
        if state.cell not in chosen or state.state == "finished" or (state.state == "failed" and not retry_failed):
            continue
        if state.state == "failed":
            state.attempts, state.state = 0, "interrupted"
        queue.append(state)
    return queue


def _forking(plan: GridPlan, cells: int) -> contextlib.AbstractContextManager[Mapping[str, str]]:
    """Return a context in which processes of cells can be forked: it yields what their environment needs for that.
    cells: how many are to run."""
    if not isinstance(plan.run, LabConfig) or cells < 2:  # one cell alone would wait for the imports
        return contextlib.nullcontext({})
    plan.folder.logs.mkdir(parents=True, exist_ok=True)
    return fork_servers(plan.folder.logs / "fork-servers.txt")


def _run(
    plan: GridPlan,
    states: Sequence[CellState],
    queue: Sequence[CellState],
    cells: Cells,
    live: bool | None,
    console: Console,
) -> None:
    reader = ProgressReader(plan.folder)
    status = GridStatus(
        f"grid {plan.folder.path.name}",
        states,
        plan.wanted,
        sizes(plan.configs),
        reader,
        grid_outlook(plan, states, reader, plan.parallel),
    )
    if live is None:
        live = console.is_terminal and not console.is_dumb_terminal and "CI" not in os.environ
    with LiveGridView(status, console) if live else PlainGridView(status, console) as view:
        view.message(f"{status.name}, in {plan.folder.path}: {status.headline()}")
        GridRun(plan.folder, states, queue, cells, view, plan.parallel, plan.grid.retries).run()


def _ending(plan: GridPlan, states: Sequence[CellState]) -> Ending:
    chosen, path = set(plan.wanted), plan.folder.path
    of_them = [state for state in states if state.cell in chosen]
    failed = [state for state in of_them if state.state == "failed"]
    unfinished = [state for state in of_them if state.state not in ("finished", "failed")]
    done = len(of_them) - len(failed) - len(unfinished)
    lines = [f"{done} of {len(of_them)} cells finished, in {path}"]
    lines += [f"failed: {state.cell.name}: {state.error}" for state in failed]
    if failed:
        lines.append(f"when that is fixed, start them again with: sat-slime grid {path} --retry-failed")
    if unfinished:
        lines.append(f"go on with: sat-slime grid {path}")
    lines.append(f"look at it with: sat-slime status {path}; report: sat-slime report {path}")
    status = "interrupted" if unfinished else "failed" if failed else "finished"
    return Ending(status, None, "\n".join(lines))
