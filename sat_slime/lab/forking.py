"""A fork server: a process of one thread that has imported what others need, and forks itself for whoever asks.

It is asked over a socket file, a connection for each process. A process between the two waits for what was forked: it
answers with the number of the process, and with its exit code once it has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

FOLDER = "SAT_SLIME_FORK_SERVERS"
"""The environment variable that names the folder of the fork servers' sockets."""
RUNS, SGLANG = "runs", "sglang"
"""The fork servers' names: of our own processes, and of SGLang's servers."""
LOST = 255
"""The return code of a process whose fork server died before it could tell."""
PATIENCE_S = 180.0
"""Seconds in which a fork server must answer; it may still import, on a busy machine."""
_LARGEST, _MOST_DESCRIPTORS = 2**20, 16
_PR_SET_PDEATHSIG = 1


class NoForkServer(OSError):
    """There is no such fork server, or it does not answer."""


class ForkedProcess:
    """A process with those methods of `subprocess.Popen` that are needed here. It leads a session of its own."""

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
        ends_with_server: bool = False,
    ) -> None:
        """Has a process forked. This waits for a fork server that still imports.

        Args:
            server: socket of the fork server.
            arguments: `sys.argv` of the process.
            stdin, stdout: descriptors; stdout is for errors too.
            environment: the whole of it.
            cwd: default: that of this process.
            keep: descriptors that the process shall hold open, by other numbers.
            ends_with_server: the process gets SIGTERM when the fork server ends, as it does with its owner.

        Raises:
            NoForkServer: nothing was started.
        """
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        request = json.dumps([list(arguments), dict(environment), str(cwd or Path.cwd()), ends_with_server]).encode()
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(PATIENCE_S)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
        try:
            self._connection.connect(str(server))
            socket.send_fds(self._connection, [request], [stdin, stdout, *keep])
            self.pid = int(self._connection.recv(32))
            self._connection.settimeout(None)
        except (OSError, ValueError) as error:
            self._connection.close()
            raise NoForkServer(f"the fork server {server} does not answer: {error}") from error

    @classmethod
    def with_stdin(cls, server: Path, arguments: Sequence[str], **options: Any) -> ForkedProcess:
        """Has a process forked whose standard input is a pipe from this one, `stdin`. Raises NoForkServer."""
        read_end, write_end = os.pipe()
        try:
            process = cls(server, arguments, stdin=read_end, **options)
        except NoForkServer:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        process.stdin = os.fdopen(write_end, "wb", buffering=0)
        return process

    def poll(self) -> int | None:
        """Return the return code; None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the return code, once the process has ended. Raises TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            with contextlib.suppress(OSError):
                self.returncode = int(self._connection.recv(32) or LOST)
            self.returncode = LOST if self.returncode is None else self.returncode
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Sends a signal to the process, unless it has ended. Its number is its own until this object is closed."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)


def socket_of(server: str, environment: Mapping[str, str]) -> Path:
    """Return the socket of the fork server of that name. Raises NoForkServer where the environment names none."""
    if FOLDER not in environment:
        raise NoForkServer("the environment names no fork servers")
    return Path(environment[FOLDER]) / server


# ---------------------------------------------------------------------------------------------------------- the server


def listen(path: Path) -> socket.socket:
    """Return the socket of a fork server, which gets its descriptor. Requests may come at once; they wait for
    `serve`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(64)
    return listener


def serve(descriptor: int) -> bool:
    """Forks for everyone who asks, until standard input closes.

    Args:
        descriptor: of what `listen` has made.

    Returns:
        Whether this is a forked process, which goes on from here with its own arguments, environment and files; False
        in the server itself, at its end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who use this server
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    with contextlib.suppress(ImportError):  # finds the name that `ps` shows while the environment is still in its place
        import setproctitle

        setproctitle.getproctitle()
    listener = socket.socket(fileno=descriptor)
    while True:
        if 0 in select.select([0, listener.fileno()], [], [])[0]:
            return False
        connection = listener.accept()[0]
        if os.fork() == 0:
            listener.close()
            return _fork_for(connection)
        connection.close()


def _fork_for(connection: socket.socket) -> bool:
    """Forks once more for who has connected. True in the process that is forked; the one that waits for it ends
    here."""
    descriptors: list[int] = []
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _end_with_parent(signal.SIGKILL)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LARGEST)
        request, descriptors, *_ = socket.recv_fds(connection, _LARGEST, _MOST_DESCRIPTORS)
        arguments, environment, cwd, ends_with_server = json.loads(request)
        if (pid := os.fork()) == 0:
            connection.close()
            _become(arguments, environment, cwd, ends_with_server, descriptors)
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(str(pid).encode())
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        connection.send(str(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status).encode())
        connection.recv(1)  # until it is closed: the process's number stays its own so long
    except (OSError, ValueError) as error:
        print(f"a request failed: {error}", file=sys.stderr, flush=True)
    os._exit(0)


def _end_with_parent(sig: signal.Signals) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sig, 0, 0, 0)


def _become(
    arguments: list[str], environment: dict[str, str], cwd: str, ends_with_server: bool, descriptors: list[int]
) -> None:
    """Makes of the forked process the one that was asked for."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if ends_with_server:
        _end_with_parent(signal.SIGTERM)
    stdin, stdout, *_ = descriptors
    for number, descriptor in enumerate((stdin, stdout, stdout)):
        os.dup2(descriptor, number)
    os.close(stdin)
    os.close(stdout)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # PYTHONUNBUFFERED comes too late
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # it may have another one
    sys.argv = arguments
