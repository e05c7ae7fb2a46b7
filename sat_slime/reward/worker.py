"""The worker processes: a parent that imports everything once, and its forks, one for each worker of the pool.

    pool                                      this parent                     fork
      | -- "S", a socket ----------------------> | -- fork ---------------------> |
      | <- process id -------------------------- |                                |
      | -- mode, response, label, over the socket ------------------------------> |
      | <- verdict -------------------------------------------------------------- |
      | -- "K", process id --------------------> | -- SIGKILL, wait               |
      | <- how it ended ------------------------ |

A fork takes milliseconds, the imports take seconds: so a worker that hangs is replaced at once. Forking is safe, since
the parent runs no thread. It ends, with all its forks, when the pool's end of its socket closes.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import json
import os
import resource
import signal
import socket
import struct
import sys

from sat_slime.reward import sandbox
from sat_slime.reward.verdict import MODES

REQUEST = struct.Struct(">BII")
"""The mode, and how many bytes the response and the label have; both follow, in UTF-8."""
REPLY = struct.Struct(">I")
"""The number of bytes of the JSON list that follows: reward, extracted answer, reason, whether to replace this
worker."""
COMMAND = struct.Struct(">cq")
ANSWER = struct.Struct(">q")

_WARM_UP = [
    ("5", "6"), (r"\frac{1}{2}", "0.25"), (r"\sqrt{8}", r"2\sqrt{2}"), ("(x-1)(x+1)", "x^2-1"), ("x+y=2", "y+x=3"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"), ("[1, 2]", r"1 \le x \le 2"),
    (r"\{1, 2\}", r"\{2, 1\}"), (r"\frac{\pi}{4}", "0.7854"), (r"3 \pm \sqrt{2}", r"3 - \sqrt{2}"), ("n!", "n+1"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty, 3)"), (r"\log_2 8 + \sin(x)^2", r"e^{2x}"), (r"\binom{n}{2}", "2n"),
]  # fmt: skip
"""Pairs whose comparison imports what sympy imports late, and fills the caches of the LaTeX grammar."""


def main(control_fd: int, cpu_limit_s: float, memory_limit_mb: int) -> None:
    """Serve the pool's commands until its socket closes: the work of the parent."""
    from sat_slime.reward.modes import judge

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the pool, and that ends this
    control = socket.socket(fileno=control_fd)
    for answer, label in _WARM_UP:
        judge(f"\\boxed{{{answer}}}", label, "default")
    gc.collect()
    gc.freeze()
    control.sendall(ANSWER.pack(0))
    children: set[int] = set()
    with contextlib.suppress(ConnectionError):
        while True:
            data, fds, _, _ = socket.recv_fds(control, COMMAND.size, 1)
            if len(data) < COMMAND.size:
                break
            command, pid = COMMAND.unpack(data)
            if command == b"S":
                child = os.fork()
                if child == 0:
                    control.close()
                    _serve(socket.socket(fileno=fds[0]), cpu_limit_s, memory_limit_mb)
                os.close(fds[0])
                children.add(child)
                control.sendall(ANSWER.pack(child))
            elif pid in children:
                children.remove(pid)
                control.sendall(ANSWER.pack(_end(pid)))
            else:
                control.sendall(ANSWER.pack(0))
    for pid in children:
        _end(pid)


def _end(pid: int) -> int:
    """Kills a fork and returns its exit code, or minus the signal that ended it. Nobody has waited for the process yet,
    so its number cannot be another's."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _serve(connection: socket.socket, cpu_limit_s: float, memory_limit_mb: int) -> None:
    """Give one verdict after another, and never return: the work of a fork."""
    from sat_slime.reward.modes import judge

    code = 1
    try:
        sys.dont_write_bytecode = True
        statm = os.open(f"/proc/{os.getpid()}/statm", os.O_RDONLY)
        enough_pages = memory_limit_mb * 2**20 // 2 // resource.getpagesize()
        sandbox.limit_resources(memory_limit_mb)
        sandbox.forbid_code(_generators())
        while True:
            header = _receive(connection, REQUEST.size)
            mode, response_size, label_size = REQUEST.unpack(header)
            texts = _receive(connection, response_size + label_size)
            response = texts[:response_size].decode("utf-8", "surrogatepass")
            label = texts[response_size:].decode("utf-8", "surrogatepass")
            sandbox.limit_cpu(cpu_limit_s)
            verdict = judge(response, label, MODES[mode])
            sandbox.limit_cpu(0)
            retire = int(os.pread(statm, 100, 0).split()[1]) > enough_pages
            reply = json.dumps([verdict.reward, verdict.extracted, verdict.reason, retire]).encode()
            connection.sendall(REPLY.pack(len(reply)) + reply)
    except MemoryError:
        code = sandbox.MEMORY
    except EOFError:
        code = 0
    finally:
        os._exit(code)


def _generators() -> list[str]:
    """Return the files of the modules that write code themselves: sympy's for the arithmetic of monomials, others for
    classes."""
    from sympy.polys import monomials

    return [module.__file__ for module in (monomials, dataclasses, collections) if module.__file__]


def _receive(connection: socket.socket, size: int) -> bytes:
    """Receives exactly `size` bytes. Raises EOFError when the other end is closed."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
