"""How processes end: their exit codes in words, and who handles the signals that end them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what `kill` and schedulers send first."""

NODE_DIED = 75
"""Exit code of a job that ended because a node on which it ran has died: a temporary failure, by sysexits.h."""


def how_it_ended(code: int) -> str:
    """Return how a process ended, as the end of a sentence, by its return code; a negative one is the number of a
    signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"was killed by signal {-code}"


@contextlib.contextmanager
def signals_handled(
    handler: Callable[[int, FrameType | None], object] | signal.Handlers, signals: Sequence[signal.Signals] = ENDING
) -> Iterator[None]:
    """Inside, `handler` handles these signals of this process, and afterwards who did so before. In another thread than
    the main one, which alone may set handlers, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, handler_before in previous.items():
            signal.signal(number, handler_before)
