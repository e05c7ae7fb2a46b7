"""The fork servers of a grid of lab runs: what its cells import is imported once.

`python -m sat_slime.cli.fork_servers SOCKET`, with the descriptor of its socket, is the one that forks the
launchers of cells, and their trainers.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sat_slime.lab.engine import SGLANG_COMMAND, server_environment
from sat_slime.lab.forking import FOLDER, RUNS, SGLANG, listen, serve
from sat_slime.rollout import sglang_on_gpu
from sat_slime.rollout.scratch import new_scratch

SAT_SLIME = "sat-slime"
"""The first argument of a cell's launcher; the other processes of that fork server are trainers."""

IMPORTED = (
    "sat_slime.cli.app",
    "sat_slime.cli.launch_command",
    "sat_slime.cli.lab_run",
    "sat_slime.lab.loop",
    "sat_slime.lab.trainer",
    "sat_slime.report.run",
)
"""The modules that a cell's processes import."""


@contextlib.contextmanager
def fork_servers(log: Path) -> Iterator[dict[str, str]]:
    """Start the fork servers; they end once the grid has, and all that they forked.

    Args:
        log: their output.

    Yields:
        What the environment of a cell needs so that its processes are forked; nothing where no process can be: not on
        Linux, or with a GPU, which does not survive a fork.
    """
    if sys.platform != "linux" or sglang_on_gpu.gpu_available():
        yield {}
        return
    with contextlib.ExitStack() as undo:
        scratch = new_scratch()
        undo.callback(scratch.remove)
        output = undo.enter_context(log.open("ab"))
        commands = {
            RUNS: [sys.executable, "-m", "sat_slime.cli.fork_servers"],
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
                    env=environment | (server_environment() if name == SGLANG else {}),
                    pass_fds=(listener.fileno(), scratch.hold),
                    start_new_session=True,  # Ctrl-C in the terminal is for the grid
                )
            undo.callback(server.communicate)  # closes its standard input, and waits
        yield {FOLDER: str(scratch.path)}


def main() -> None:
    """Be the fork server of runs, and, in a process that it forks, what was asked for."""
    import setproctitle

    from sat_slime.cli import main as sat_slime
    from sat_slime.lab.process import serve as be_trainer

    for module in IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a forked process would write to, and so copy, what was imported
    if not serve(int(sys.argv[1])):
        return
    with contextlib.suppress(ImportError):
        setproctitle.setproctitle(" ".join(sys.argv))  # `ps` tells cells apart
    if sys.argv[0] == SAT_SLIME:
        sat_slime()
    else:
        be_trainer()


if __name__ == "__main__":
    main()
