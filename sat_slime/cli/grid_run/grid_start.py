"""The cells of a grid run one after another or side by side, each as a command of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

from rich.console import Console

from sat_slime.cli.embedded_run import engine_packages
from sat_slime.cli.grid_run.cells import Cells
from sat_slime.cli.grid_run.fork_servers import fork_servers
from sat_slime.cli.grid_run.grid_plan import GridPlan, grid_outlook, sizes
from sat_slime.cli.grid_run.ray_cells import ray_nodes
from sat_slime.cli.terminal import Ending, keys_unseen
from sat_slime.config import ConfigError, EmbeddedConfig
from sat_slime.config.disk import disk_is_full
from sat_slime.grid.progress import ProgressReader
from sat_slime.grid.runner import GridRun
from sat_slime.grid.state import CellState
from sat_slime.grid.view import GridStatus, LiveGridView, PlainGridView
from sat_slime.runs.folder import writable


def run_grid(
    plan: GridPlan,
    retry_failed: bool,
    options: Sequence[str],
    live: bool | None,
    console: Console,
    ray_address: str | None = None,
) -> Ending:
    """Run the chosen cells to their end, or until Ctrl-C. Raises ConfigError or RunFolderError when it cannot start.

    options: further options of `sat-slime launch`, for runs of slime. ray_address: of a running Ray cluster, whose
    nodes are to run the cells; default: this machine runs them.
    """
    if ray_address is not None and not isinstance(plan.run, EmbeddedConfig):
        raise ConfigError(["--ray is for embedded runs; a run of slime is a job of the cluster that --address names"])
    if isinstance(plan.run, EmbeddedConfig) and options:
        raise ConfigError([f"{options[0]} is for runs of slime, and these are embedded runs: leave it out"])
    if isinstance(plan.run, EmbeddedConfig) and (missing := engine_packages.missing_engines()):
        raise ConfigError([f"the embedded runtime needs {', '.join(missing)}: {engine_packages.INSTALL_ENGINES}"])
    folder = plan.folder
    with contextlib.ExitStack() as undo:
        with writable(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.lock()
            undo.callback(folder.unlock)
            on_nodes = undo.enter_context(ray_nodes(ray_address, plan)) if ray_address is not None else None
            states = folder.begin(plan.grid, plan.run)
        queue = _queue(plan, states, retry_failed)
        try:
            with keys_unseen(), _forking(plan, len(queue) if on_nodes is None else 0) as environment:
                cells = on_nodes or Cells(plan, options, environment)
                _run(plan, states, queue, cells, live, console)
                nodes_left = cells.room() > 0
        except OSError as error:
            if not disk_is_full(error):
                raise
            remedy = f"free space and go on with: sat-slime grid {folder.path}"
            return Ending("failed", None, f"{error.filename or folder.path}: {error.strerror}; {remedy}")
    on_ray = f" --ray {ray_address}" if ray_address is not None else ""
    lost = None if nodes_left else f"no node of the Ray cluster at {ray_address} is left to run cells on"
    return _ending(plan, states, on_ray, lost)


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
    cells: how many are to run here."""
    if not isinstance(plan.run, EmbeddedConfig) or cells < 2:  # one cell alone would wait for the imports
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
        grid_outlook(plan, states, reader, cells.room()),
    )
    if live is None:
        live = console.is_terminal and not console.is_dumb_terminal and "CI" not in os.environ
    with LiveGridView(status, console) if live else PlainGridView(status, console) as view:
        view.message(f"{status.name}, in {plan.folder.path}: {status.headline()}")
        GridRun(plan.folder, states, queue, cells, view, plan.grid.retries).run()


def _ending(plan: GridPlan, states: Sequence[CellState], on_ray: str, lost: str | None) -> Ending:
    """on_ray: the option with which the grid goes on on Ray. lost: why no cell could run any more."""
    chosen, path = set(plan.wanted), plan.folder.path
    of_them = [state for state in states if state.cell in chosen]
    failed = [state for state in of_them if state.state == "failed"]
    unfinished = [state for state in of_them if state.state not in ("finished", "failed")]
    done = len(of_them) - len(failed) - len(unfinished)
    lines = [f"{done} of {len(of_them)} cells finished, in {path}"]
    lines += [f"failed: {state.cell.name}: {state.error}" for state in failed]
    if failed:
        lines.append(f"when that is fixed, start them again with: sat-slime grid {path} --retry-failed{on_ray}")
    if unfinished:
        lines.append(f"go on with: sat-slime grid {path}{on_ray}")
    lines.append(f"look at it with: sat-slime status {path}; report: sat-slime report {path}")
    status = "failed" if lost and unfinished else "interrupted" if unfinished else "failed" if failed else "finished"
    return Ending(status, lost if unfinished else None, "\n".join(lines))
