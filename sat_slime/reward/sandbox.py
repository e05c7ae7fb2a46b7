"""A worker process may not do these things: grow past its memory, take more than its CPU time, run code, write, reach
out.

The kernel holds it to its limits, and an audit hook, which Python code cannot take off again, to the rest.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterable
from typing import Any

MEMORY, FORBIDDEN = 81, 82
"""Exit codes of a worker that ended itself."""

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


def limit_resources(memory_mb: int) -> None:
    """Limits this process for good: no more memory than that, no core dump, no file, no new process."""
    size = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    for none in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
        resource.setrlimit(none, (0, 0))


def limit_cpu(seconds: float) -> None:
    """Has the kernel kill this process after so many more CPU seconds, also within a call into C; 0 ends the limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def forbid_code(generators: Iterable[str]) -> None:
    """Has the process end, from now on, when anything would be evaluated, started, written, or connected to.

    Modules that sympy imports late still load, from the folders that Python imports from.

    Args:
        generators: files of the modules that may compile texts, which they write themselves.
    """
    allowed = frozenset(generators)
    roots = tuple(sorted({os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, *sys.path) if path}))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "compile":
            # eval and exec compile a text under the name <string>; the frame is their caller's.
            of_module = os.path.isabs(str(_text(arguments[1])))
            forbidden = not of_module and sys._getframe(1).f_code.co_filename not in allowed
        elif event == "open":
            path, _, flags = arguments
            forbidden = bool((flags or 0) & _WRITING) or not os.path.realpath(str(_text(path))).startswith(roots)
        else:
            forbidden = event in _EVENTS
        if forbidden:
            os._exit(FORBIDDEN)

    sys.addaudithook(hook)


def _text(name: Any) -> Any:
    return os.fsdecode(name) if isinstance(name, (bytes, os.PathLike)) else name
