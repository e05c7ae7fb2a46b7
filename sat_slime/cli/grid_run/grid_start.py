"""The cells of a grid run one after another or side by side, each as a command of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from rich.console import Console

from sat_slime.cli.embedded_run import engine_packages
from sat_slime.cli.grid_run.fork_servers import SAT_SLIME, fork_servers
from sat_slime.cli.grid_run.grid_plan import GridPlan, grid_outlook, sizes
from sat_slime.cli.slime_run.slime_plan import saved_iterations
from sat_slime.cli.terminal import Ending, keys_unseen
from sat_slime.config import ConfigError, EmbeddedConfig, SlimeConfig
from sat_slime.config.disk import disk_is_full
from sat_slime.grid.progress import ProgressReader
from sat_slime.grid.runner import GridRun, Process
from sat_slime.grid.state import CellState
from sat_slime.grid.view import GridStatus, LiveGridView, PlainGridView
from sat_slime.runs.folder import RunFolderError, writable

COMMAND = (sys.executable, "-m", "sat_slime.cli.grid_run.tied")
"""The command that runs a cell where no fork server does, with the grid's process and the arguments of `sat-slime`
behind it."""


class Cells:
    """The commands that run the cells: `sat-slime launch`, or `sat-slime logs` where a cell's job goes on already."""

    def __init__(self, plan: GridPlan, options: Sequence[str] = (), environment: Mapping[str, str] | None = None):
        """options: further options of `sat-slime launch`, for runs of slime. environment: what is more in that of a
        cell."""
        self.plan = plan
        self.options = options
        self.environment = {**os.environ, **(environment or {})}

    def arguments(self, state: CellState) -> list[str]:
        config, run = self.plan.configs[state.cell], self.plan.folder.run_folder(state)
        if isinstance(config, SlimeConfig) and run.state().get("status") == "running":
            arguments = ["logs", str(run.path), "--follow"]
        elif run.has_data() or (isinstance(config, SlimeConfig) and saved_iterations(config, run.path)):
            arguments = ["launch", str(run.path), "--resume", "--no-live", *self.options]
        else:
            file = self.plan.folder.keep_cell(state.cell, config)
            arguments = ["launch", str(file), "--no-live", *self.options]
        return arguments

    def start(self, arguments: Sequence[str], output: IO[bytes]) -> Process:
        from sat_slime.embedded.forking.forked_process import RUNS, ForkedProcess, NoForkServer, socket_of

        with contextlib.suppress(NoForkServer), open(os.devnull, "rb") as nothing:
            return ForkedProcess(
                socket_of(RUNS, self.environment),
                [SAT_SLIME, *arguments],
                stdin=nothing.fileno(),
                stdout=output.fileno(),
                environment=self.environment,
                at_loss=signal.SIGTERM,
            )
        # A session of its own: Ctrl-C in the terminal is for the grid, which passes it on.
        return subprocess.Popen(
            [*COMMAND, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def settle(self, state: CellState) -> None:
        if isinstance(self.plan.run, SlimeConfig):
            from sat_slime.cli.slime_run.sent_run import status_lines
            from sat_slime.plugin.launch.ray_jobs import JobError

            # What cannot be asked now is told by the command that runs next.
            with contextlib.suppress(RunFolderError, ConfigError, JobError):
                status_lines(self.plan.folder.run_folder(state).path)


def run_grid(plan: GridPlan, retry_failed: bool, options: Sequence[str], live: bool | None, console: Console) -> Ending:
    """Run the chosen cells to their end, or until Ctrl-C. Raises ConfigError or RunFolderError when it cannot start.

    options: further options of `sat-slime launch`, for runs of slime.
    """
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
            states = folder.begin(plan.grid, plan.run)
        queue = _queue(plan, states, retry_failed)
        try:
            with keys_unseen(), _forking(plan, len(queue)) as environment:
                _run(plan, states, queue, Cells(plan, options, environment), live, console)
        except OSError as error:
            if not disk_is_full(error):
                raise
            remedy = f"free space and go on with: sat-slime grid {folder.path}"
            return Ending("failed", None, f"{error.filename or folder.path}: {error.strerror}; {remedy}")
    return _ending(plan, states)


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
