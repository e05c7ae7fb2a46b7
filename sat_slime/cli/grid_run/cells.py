"""The commands that run the cells of a grid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from sat_slime.cli.grid_run.fork_servers import SAT_SLIME
from sat_slime.cli.grid_run.grid_plan import GridPlan
from sat_slime.cli.slime_run.slime_plan import saved_iterations
from sat_slime.config import ConfigError, SlimeConfig
from sat_slime.grid.runner import Process
from sat_slime.grid.state import CellState
from sat_slime.runs.folder import RunFolderError

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
        from sat_slime.lab.forking.forked_process import RUNS, ForkedProcess, NoForkServer, socket_of

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
            env=self.environment,
            start_new_session=True,
        )

    def kill(self, process: Process) -> None:
        os.killpg(process.pid, signal.SIGKILL)

    def settle(self, state: CellState) -> None:
        if isinstance(self.plan.run, SlimeConfig):
            from sat_slime.cli.slime_run.sent_run import status_lines
            from sat_slime.launch.ray_jobs import JobError

            # What cannot be asked now is told by the command that runs next.
            with contextlib.suppress(RunFolderError, ConfigError, JobError):
                status_lines(self.plan.folder.run_folder(state).path)
