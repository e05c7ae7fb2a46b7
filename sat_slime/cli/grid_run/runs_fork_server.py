"""`python -m sat_slime.cli.grid_run.runs_fork_server SOCKET` forks the launchers of a grid's cells, and Ray's workers.

SOCKET is the descriptor of its socket.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys

import setproctitle

from sat_slime.cli import main as sat_slime
from sat_slime.cli.grid_run.fork_servers import SAT_SLIME
from sat_slime.embedded.forking.fork_server import serve
from sat_slime.embedded.forking.ray_worker import be_ray_worker

IMPORTED = (
    "sat_slime.cli.app",
    "sat_slime.cli.run_plan",
    "sat_slime.cli.embedded_run.embedded_plan",
    "sat_slime.cli.embedded_run.embedded_start",
    "sat_slime.embedded.checkpoint",
    "sat_slime.embedded.grading",
    "sat_slime.embedded.engine.rollout_engine",
    "sat_slime.embedded.trainer.rank",
    "sat_slime.report.run.run_report",
)
"""What a cell's processes import, but for Ray, whose library reads the environment as it is imported: each process has
its own."""


def main() -> None:
    for module in IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a forked process would write to, and so copy, what was imported
    if not serve(int(sys.argv[1])):
        return
    if sys.argv[0] != SAT_SLIME:
        be_ray_worker()
        return
    with contextlib.suppress(ImportError):
        setproctitle.setproctitle(" ".join(sys.argv))  # `ps` tells cells apart
    sat_slime()


if __name__ == "__main__":
    main()
