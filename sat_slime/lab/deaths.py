"""Children of a process, and how they ended. This module imports no engine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def children(parent: int | None = None) -> dict[int, str]:
    """Return a process's children, zombies among them: process number to the program's name, cut to the 15 characters
    that the kernel keeps.

    Args:
        parent: default: this process.
    """
    return {pid: name for pid, name, _ in _children(os.getpid() if parent is None else parent)}


def dead_children(parent: int) -> Iterator[tuple[int, str, int]]:
    """Yield (process number, program's name, return code) of a process's children that have died and that it has not
    collected."""
    for pid, name, fields in _children(parent):
        with contextlib.suppress(ValueError, IndexError):
            if fields[0] == "Z":
                yield pid, name, os.waitstatus_to_exitcode(int(fields[49]))


def _children(parent: int) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (process number, program's name, what /proc/PID/stat has behind it) of a process's children."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            name, _, rest = (process / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            if int(fields[1]) == parent:
                yield int(process.name), name, fields


def is_ending(pid: int) -> bool:
    """Tells whether a process's first thread has ended, while its others may still run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False
