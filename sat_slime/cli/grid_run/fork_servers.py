"""The fork servers of a grid of embedded runs: what its cells import is imported once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sat_slime.embedded.engine.server import SGLANG_COMMAND, gpu_available, server_environment
from sat_slime.embedded.forking.fork_server import listen
from sat_slime.embedded.forking.forked_process import FOLDER, RUNS, SGLANG
from sat_slime.rollout.scratch import new_scratch

SAT_SLIME = "sat-slime"
"""The first argument of a cell's launcher; other processes of that fork server are Ray's workers."""


@contextlib.contextmanager
def fork_servers(log: Path) -> Iterator[dict[str, str]]:
    """Starts the fork servers; they end once the grid has, and all that they forked.

    Args:
        log: their output.

    Yields:
        What the environment of a cell needs so that its processes are forked; nothing where no process can be: not on
        Linux, or with a GPU, which does not survive a fork.
    """
    if not hasattr(os, "pidfd_open") or gpu_available():
        yield {}
        return
    with contextlib.ExitStack() as undo:
        scratch = new_scratch()
        undo.callback(scratch.remove)
        output = undo.enter_context(log.open("ab"))
        commands = {
            RUNS: [sys.executable, "-m", "sat_slime.cli.grid_run.runs_fork_server"],
            SGLANG: [*SGLANG_COMMAND, "--fork-server"],
        }
        for name, command in commands.items():
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            with listen(scratch.path / name) as listener:
                server = subprocess.Popen(
                    [*command, str(listener.fileno())],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment | (server_environment(on_gpu=False) if name == SGLANG else {}),
                    pass_fds=(listener.fileno(), scratch.hold),
                    start_new_session=True,  # Ctrl-C in the terminal is for the grid
                )
            undo.callback(server.communicate)  # closes its standard input, and waits
        yield {FOLDER: str(scratch.path)}
