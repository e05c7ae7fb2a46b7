"""A process of the verifier, and what it may not do: grow past its memory, take more than its CPU time, run code,
write, reach out.

The kernel holds it to its limits, and an audit hook, which Python code cannot take off again, to the rest. It ends when
the pool's end of its socket closes, and is replaced by the pool when it dies, for some 1.3 s of CPU time.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import json
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any, NoReturn

_WARM_UP = [
    ("5", "6"), (r"\frac{1}{2}", "0.25"), (r"\sqrt{8}", r"2\sqrt{2}"), ("(x-1)(x+1)", "x^2-1"), ("x+y=2", "y+x=3"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"), ("[1, 2]", r"1 \le x \le 2"),
    (r"\{1, 2\}", r"\{2, 1\}"), (r"\frac{\pi}{4}", "0.7854"), (r"3 \pm \sqrt{2}", r"3 - \sqrt{2}"), ("n!", "n+1"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty, 3)"), (r"\log_2 8 + \sin(x)^2", r"e^{2x}"), (r"\binom{n}{2}", "2n"),
]  # fmt: skip
"""Pairs whose comparison imports what sympy imports late, and fills the caches of the LaTeX grammar."""


def main(fd: int, cpu_limit_s: float, memory_limit_mb: int) -> None:
    """Import the mathematics, tell the other end of the socket, and serve it: the work of the process."""
    from sat_slime.reward.comparison import judge

    # One that is stopped or blocked reads no end of its socket: the kernel ends it with the thread that started it.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    for answer, label in _WARM_UP:
        judge(f"\\boxed{{{answer}}}", label, "default")
    connection = Connection(fd)
    connection.send_bytes(b"ready")
    serve(connection, cpu_limit_s, memory_limit_mb)


def serve(connection: Connection, cpu_limit_s: float, memory_limit_mb: int) -> NoReturn:
    """Give one verdict after another. A request is the JSON list of response, label and mode; a reply that of reward,
    extracted answer and reason. It ends with its socket, or with half of its memory in use after a verdict."""
    from sat_slime.reward.comparison import judge

    code = 0
    try:
        sys.dont_write_bytecode = True
        statm = os.open(f"/proc/{os.getpid()}/statm", os.O_RDONLY)
        enough_pages = memory_limit_mb * 2**20 // 2 // resource.getpagesize()
        confine(memory_limit_mb)
        while True:
            request = json.loads(connection.recv_bytes())
            # The kernel kills this process after so many CPU seconds, also within a call into C; 0 ends the limit.
            signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
            given = judge(*request)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send_bytes(json.dumps([given.reward, given.extracted, given.reason]).encode())
            if int(os.pread(statm, 100, 0).split()[1]) > enough_pages:
                break
    except MemoryError:
        code = MEMORY
    finally:
        os._exit(code)


MEMORY, FORBIDDEN = 81, 82
"""Exit codes of a process that ended itself: out of memory, at what it may not do."""

_EVENTS = frozenset(
    {
        "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.startfile", "os.kill",
        "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink",
        "os.truncate", "os.putenv", "subprocess.Popen", "pty.spawn", "shutil.rmtree",
        "socket.__new__", "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "ctypes.dlopen",
        "ctypes.dlsym", "code.__new__", "pickle.find_class", "builtins.input", "webbrowser.open",
    }
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def confine(memory_mb: int) -> None:
    """Limits this process for good: no more memory than that, no core dump, no file, no new process. It ends when
    anything would be evaluated, started, written, or connected to. Modules that sympy imports late still load, from the
    folders that Python imports from."""
    from sympy.polys import monomials

    size = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    for none in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
        resource.setrlimit(none, (0, 0))
    # These compile texts that they write themselves: for the arithmetic of monomials, and for classes.
    allowed = {monomials.__file__, dataclasses.__file__, collections.__file__}
    roots = tuple(sorted({os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, *sys.path) if path}))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "compile":
            # eval and exec compile a text under the name <string>; the frame is their caller's.
            forbidden = not os.path.isabs(str(arguments[1])) and sys._getframe(1).f_code.co_filename not in allowed
        elif event == "open":
            path, _, flags = arguments
            forbidden = bool((flags or 0) & _WRITING) or isinstance(path, int)
            forbidden = forbidden or not os.path.realpath(os.fsdecode(path)).startswith(roots)
        else:
            forbidden = event in _EVENTS
        if forbidden:
            os._exit(FORBIDDEN)

    sys.addaudithook(hook)
