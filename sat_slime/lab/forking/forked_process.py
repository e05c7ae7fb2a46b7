"""A process that a fork server has forked for this one; what it needs to import is there when it starts."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

FOLDER = "SAT_SLIME_FORK_SERVERS"
"""The environment variable that names the folder of the fork servers' sockets."""
RUNS, SGLANG = "runs", "sglang"
"""The fork servers' names: of our own processes, and of SGLang's servers."""
LOST = 255
"""The return code of a process whose fork server died before it could tell."""
PATIENCE_S = 180.0
"""Seconds in which a fork server must answer; it may still import, on a busy machine."""
HEADER = 8
"""Bytes of a request's length, which come before it."""


class NoForkServer(OSError):
    """There is no such fork server, or it does not answer."""


class ForkedProcess:
    """A process with those methods of `subprocess.Popen` that are needed here.

    The process leads a session of its own. When the process that holds this object ends, however it does, the fork
    server sends `at_loss`: SIGKILL goes to its process group, anything else to the process alone.
    """

    def __init__(
        self,
        server: Path,
        arguments: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        environment: Mapping[str, str],
        cwd: Path | None = None,
        keep: Sequence[int] = (),
        at_loss: signal.Signals = signal.SIGKILL,
    ) -> None:
        """Has a process forked. This waits for a fork server that still imports.

        Args:
            server: socket of the fork server.
            arguments: `sys.argv` of the process.
            stdin, stdout: descriptors; stdout is for errors too.
            environment: the whole of it.
            cwd: default: that of this process.
            keep: descriptors that the process shall hold open, by other numbers.

        Raises:
            NoForkServer: nothing was started.
        """
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "cwd": str(cwd or Path.cwd()),
            "at_loss": int(at_loss),
        }
        body = json.dumps(request).encode()
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(PATIENCE_S)
        try:
            self._connection.connect(str(server))
            socket.send_fds(self._connection, [len(body).to_bytes(HEADER, "big")], [stdin, stdout, *keep])
            self._connection.sendall(body)
            # Unbuffered: `wait` asks the connection whether there is an answer, which must not lie in a buffer then.
            self._answers = self._connection.makefile("rb", buffering=0)
            self.pid = int(json.loads(self._answers.readline())["pid"])
            self._connection.settimeout(None)
            self._handle = os.pidfd_open(self.pid)
        except (OSError, ValueError) as error:
            self._connection.close()
            raise NoForkServer(f"the fork server {server} does not answer: {error}") from error

    def poll(self) -> int | None:
        """Return the return code; None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the return code, once the process has ended. Raises TimeoutExpired."""
        if self.returncode is None:
            self._await(self._connection, timeout)
            answer = self._answers.readline()
            if not answer:  # the fork server is gone, and nobody else is told how the process ends
                self._await(self._handle, timeout)
            self.returncode = json.loads(answer)["code"] if answer else LOST
        return self.returncode

    def _await(self, source: socket.socket | int, timeout: float | None) -> None:
        if not select.select([source], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)

    def send_signal(self, sig: int) -> None:
        """Sends a signal to the process, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, sig)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._handle)


def socket_of(server: str, environment: Mapping[str, str]) -> Path:
    """Return the socket of the fork server of that name. Raises NoForkServer where the environment names none."""
    if FOLDER not in environment:
        raise NoForkServer("the environment names no fork servers")
    return Path(environment[FOLDER]) / server
