"""How tests wait for what other processes do: so long that on a busy machine too only what never comes fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

PATIENCE_S = 600.0


def until(condition: Callable, process=None, otherwise: Callable[[], str] = lambda: "it does not happen"):
    """Wait for a condition and return its value. process: a Popen that has to run until then; otherwise: what to say
    where it ended, or the condition never held."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        over = time.monotonic() > deadline or (process is not None and process.poll() is not None)
        if over and not (found := condition()):  # it may have come just before the end
            raise AssertionError(otherwise())
        if over:
            break
        time.sleep(0.02)
    return found


def command_line(process) -> str:
    """The command line of a psutil.Process; "" where it has ended."""
    import psutil

    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return ""


def assert_gone(processes: Iterable) -> None:
    """Wait for the end of each psutil.Process."""
    import psutil

    _, alive = psutil.wait_procs(list(processes), timeout=PATIENCE_S)
    assert not alive, [command_line(process) for process in alive]
