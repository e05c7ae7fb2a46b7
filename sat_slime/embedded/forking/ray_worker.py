"""The program that Ray's raylet starts in place of `setup_worker.py`: it has a fork server fork the worker, and ends
with it.

Ray knows a worker by the process number that the worker itself tells, so that nothing else changes for it.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys

if __name__ == "__main__":  # beside this file, since the package imports torch
    from forked_process import RUNS, ForkedProcess, NoForkServer, socket_of


def be_ray_worker() -> None:
    """Becomes the worker that `sys.argv` asks for, in a process that was forked."""
    import ray
    from ray._private.workers import setup_worker

    with contextlib.suppress(ImportError):  # Ray's own does not find the name's place in a forked process
        from setproctitle import setproctitle

        ray._raylet.setproctitle = setproctitle  # type: ignore[attr-defined]
    _, sys.argv = setup_worker.parser.parse_known_args(sys.argv)
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    """Asks for a worker and waits for its end; without a fork server this process becomes the worker."""
    try:
        server = socket_of(RUNS, os.environ)
        worker = ForkedProcess(server, sys.argv[1:], stdin=0, stdout=1, environment=os.environ)
    except NoForkServer:
        import ray._private.workers.setup_worker as setup_worker

        os.execv(sys.executable, [sys.executable, str(setup_worker.__file__), *sys.argv[1:]])
    code = worker.wait()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
