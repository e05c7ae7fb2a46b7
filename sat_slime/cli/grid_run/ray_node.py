"""The processes on the nodes of a Ray cluster: the command of a cell, and a look at whether a node can run one.

Ray takes functions and classes of this module along by value, so until `main` it imports nothing of ours: a node may
lack the package. `python -m sat_slime.cli.grid_run.ray_node LOCK` is the look.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

LOOK = ("-m", "sat_slime.cli.grid_run.ray_node")
INTERRUPTED, NODE_LOST = 130, 1000
"""As grid.runner has them."""
LOOKS_S = 1.0
"""Seconds between looks at whether the node still belongs to the cluster."""


def look(folder: str, lock: str, variables: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what this node has of what a cell needs; see `main`. With `error` alone where a cell cannot start here.

    folder: where cells are started. lock: the file that the grid holds. variables: see `cell_environment`.
    """
    environment = cell_environment(variables)
    try:
        result = subprocess.run(
            [sys.executable, *LOOK, lock], cwd=folder, env=environment, capture_output=True, text=True
        )
    except OSError as error:
        return {"error": f"{error.filename or folder}: {error.strerror}"}
    if result.returncode:
        return {"error": f"{sys.executable}: {(result.stderr.strip().splitlines() or ['no sat_slime'])[-1]}"}
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def cell_environment(variables: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment of this process without what Ray put into it: a cell has a Ray of its own, which must not
    find this one or its token.

    variables: further ones, as they are where the grid runs; None: unset there.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_") and name not in variables}
    return kept | {name: value for name, value in variables.items() if value is not None}


class NodeCell:
    """An actor of Ray that runs the command of a cell. Two threads call it: one runs, the other signals."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = False

    def run(self, command: Sequence[str], output: str, folder: str, variables: Mapping[str, str | None]) -> int:
        """Run the command to its end; returns its exit code. Behind the command's first words, which are Python and
        its module, it gets the number of this process, with which it ends. It also ends where the node's part of Ray
        does; NODE_LOST is returned then.

        output: the file that takes what it prints. folder: where it is started.
        """
        if self._asked:
            return INTERRUPTED
        with open(output, "ab") as file:
            self._process = subprocess.Popen(
                [word.format(python=sys.executable, parent=os.getpid()) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=cell_environment(variables),
                start_new_session=True,
            )
        if self._asked:
            self._process.terminate()
        raylet = os.getppid()
        while True:
            try:
                code = self._process.wait(LOOKS_S)
                return code if os.getppid() == raylet else NODE_LOST
            except subprocess.TimeoutExpired:
                if os.getppid() != raylet and not self._asked:  # the grid runs the cell elsewhere
                    self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send a signal to the command, or keep it from starting; SIGKILL goes to all that it started too."""
        self._asked = True
        if self._process is None or self._process.poll() is not None:
            return
        if number == signal.SIGKILL:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)


def main() -> None:
    """Print what this machine has, as JSON."""
    from pathlib import Path

    print(json.dumps(facts(Path(sys.argv[1]))))


def facts(lock: Any) -> dict[str, Any]:
    """Return `package`, a digest of sat_slime's code; `missing`, the packages of the embedded runtime that are not
    installed; `memory`, in GiB; and `locked`, whether the grid's lock, at this path, is seen to be held."""
    import hashlib
    from pathlib import Path

    import sat_slime
    from sat_slime.cli.embedded_run.engine_packages import missing_engines
    from sat_slime.runs.lock import FolderLock

    root, digest = Path(sat_slime.__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return {
        "package": digest.hexdigest(),
        "missing": missing_engines(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "locked": FolderLock(lock).is_held(),
    }


if __name__ == "__main__":
    main()
