"""What tests have started and not ended: Ray and SGLang too, suspended processes, those that have lost their parent.

Each has in its environment the session, the pytest that started it, for how long, and in which test.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import psutil
from waiting import command_line

MARK = "SAT_SLIME_TESTS"
GRACE_S = 120.0
"""For those that end by themselves, as Ray's workers do once their raylet is gone."""
WITH_US = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")
"""What ends together with the pytest that started it."""


def begin_session() -> None:
    """To be called before there are workers, which inherit the mark."""
    os.environ[MARK] = str(os.getpid())
    os.environ["SPT_NOENV"] = "1"  # a process that gives itself a name keeps its environment


def mark(until: str = "file") -> None:
    """Mark what this process will start as that of a file of tests, or of the "session"."""
    os.environ[MARK] = f"{os.environ[MARK].split()[0]} {os.getpid()} {until}"


@contextlib.contextmanager
def for_the_session() -> Iterator[None]:
    """What is started here may outlive its file of tests."""
    mark("session")
    try:
        yield
    finally:
        mark()


def left(of: str) -> list[psutil.Process]:
    """Return the processes that live and whose mark begins with these words."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            with open(f"/proc/{process.pid}/environ", errors="replace") as file:
                marked = any(line.startswith(f"{MARK}={of}") for line in file.read().split("\0"))
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                found += [process] if not any(word in command_line(process) for word in WITH_US) else []
    return found


def end_what_is_left(until: str, grace_s: float = GRACE_S) -> list[str]:
    """Kill what this pytest has started for a "file" or the "session", or what a whole session has ("all"); return
    the command line of each that was not about to end, and the test that started it."""
    session, own = os.environ[MARK].split()[0], os.getpid()
    of = {"file": f"{session} {own} file", "session": f"{session} {own} ", "all": f"{session} "}[until]
    deadline = time.monotonic() + grace_s
    while (processes := left(of)) and time.monotonic() < deadline:
        if all(process.status() == psutil.STATUS_STOPPED for process in processes):
            break
        time.sleep(0.1)
    told = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            test = process.environ().get("PYTEST_CURRENT_TEST", "?")
            told.append(f"{process.pid} {command_line(process)[:120]}, started by {test}")
            process.kill()
    return told
