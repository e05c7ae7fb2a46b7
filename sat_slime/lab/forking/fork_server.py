"""A fork server: a process of one thread that has imported what others need, and forks itself for whoever asks.

It is asked over a socket file, a connection for each process; `forked_process` has the other end. It answers with
`{"pid": ...}`, and with `{"code": ...}` once that process has ended. A process is collected when its connection is
closed, so that its number stays its own as long as anybody may signal it; one that still runs is then ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sat_slime.lab.forking.forked_process import HEADER

PATIENCE_S = 10.0
"""Seconds in which a request must arrive whole."""
MOST_DESCRIPTORS = 16
PART = 2**16
"""Bytes of a request that are read at a time."""
_PR_SET_PDEATHSIG = 1


def listen(path: Path) -> socket.socket:
    """Return the socket of a fork server, which gets its descriptor. Requests may come at once; they wait for
    `serve`."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    return listener


@dataclass(frozen=True)
class _Request:
    """The request for a process; `ForkedProcess` describes its parts."""

    arguments: list[str]
    environment: dict[str, str]
    cwd: str
    at_loss: int


@dataclass
class _Child:
    pid: int
    at_loss: int
    handle: int
    """Becomes readable when the process has ended."""
    connection: socket.socket | None
    """None once who asked for the process has closed it."""
    ended: bool = False


@dataclass
class _Server:
    listener: socket.socket
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    children: list[_Child] = field(default_factory=list)
    owner_lives: bool = True


def serve(descriptor: int) -> bool:
    """Forks for everyone who asks, until standard input closes and all that was forked has ended.

    Args:
        descriptor: of what `listen` has made.

    Returns:
        Whether this is a forked process, which goes on from here with its own arguments, environment and files; False
        in the server itself, at its end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who use this server
    _find_name()
    listener = socket.socket(fileno=descriptor)
    server = _Server(listener)
    server.selector.register(listener, selectors.EVENT_READ)
    server.selector.register(0, selectors.EVENT_READ)
    while server.owner_lives or server.children:
        for key, _ in server.selector.select():
            if key.fileobj is listener:
                if _fork_for(listener.accept()[0], server):
                    return True
            elif key.fileobj == 0:
                server.selector.unregister(0)
                server.owner_lives = False
            else:
                _tend(key.data, key.fileobj, server)
    return False


def _find_name() -> None:
    """Lets what is forked give itself the name that `ps` shows. The name's place in memory is found by the environment,
    and a forked process gets another one."""
    with contextlib.suppress(ImportError):
        import setproctitle

        setproctitle.getproctitle()


def _fork_for(connection: socket.socket, server: _Server) -> bool:
    """Forks for who has connected; True in the process that is forked."""
    descriptors: list[int] = []
    try:
        connection.settimeout(PATIENCE_S)
        header, descriptors, *_ = socket.recv_fds(connection, HEADER, MOST_DESCRIPTORS)
        request = _Request(**json.loads(_receive(connection, int.from_bytes(header, "big"))))
        pid = os.fork()
    except (OSError, ValueError, TypeError) as error:
        print(f"a request failed: {error}", file=sys.stderr, flush=True)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.close()
        return False
    if pid == 0:
        connection.close()
        _leave(server)
        _become(request, descriptors)
        return True
    for descriptor in descriptors:
        os.close(descriptor)
    child = _Child(pid, request.at_loss, os.pidfd_open(pid), connection)
    server.children.append(child)
    server.selector.register(child.handle, selectors.EVENT_READ, child)
    server.selector.register(connection, selectors.EVENT_READ, child)
    _tell(connection, {"pid": pid})
    return False


def _receive(connection: socket.socket, size: int) -> bytes:
    body = b""
    while len(body) < size:
        part = connection.recv(min(size - len(body), PART))
        if not part:
            raise OSError("it ended early")
        body += part
    return body


def _tell(connection: socket.socket, what: dict[str, int]) -> None:
    with contextlib.suppress(OSError):  # who asked is gone: its connection's end says so
        connection.sendall(json.dumps(what).encode() + b"\n")


def _tend(child: _Child, source: Any, server: _Server) -> None:
    if source == child.handle:
        server.selector.unregister(child.handle)
        os.close(child.handle)
        child.ended = True
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        if child.connection is not None:
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            _tell(child.connection, {"code": code})
    elif child.connection is not None:  # nothing more is ever sent on it: it was closed
        server.selector.unregister(child.connection)
        child.connection.close()
        child.connection = None
        _end(child)
    if child.ended and child.connection is None:
        os.waitpid(child.pid, 0)
        server.children.remove(child)


def _end(child: _Child) -> None:
    """Ends what nobody holds any more. The process has not been collected, so the number is its own."""
    if child.at_loss == signal.SIGKILL:
        try:
            os.killpg(child.pid, signal.SIGKILL)
            return
        except ProcessLookupError:  # it does not lead its group yet, or nothing is left of it
            pass
    if not child.ended:
        os.kill(child.pid, child.at_loss)


def _leave(server: _Server) -> None:
    """Closes what is the server's in the process that was forked."""
    server.selector.close()
    server.listener.close()
    for child in server.children:
        if not child.ended:
            os.close(child.handle)
        if child.connection is not None:
            child.connection.close()


def _become(request: _Request, descriptors: list[int]) -> None:
    """Makes of the forked process the one that was asked for."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.at_loss != signal.SIGKILL and sys.platform == "linux":  # it outlives no fork server either
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, request.at_loss, 0, 0, 0)
    stdin, stdout, *_ = descriptors
    for number, descriptor in enumerate((stdin, stdout, stdout)):
        os.dup2(descriptor, number)
    os.close(stdin)
    os.close(stdout)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # PYTHONUNBUFFERED comes too late
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environment)
    tempfile.tempdir = None  # it may have another one
    sys.argv = request.arguments
