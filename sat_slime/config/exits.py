"""How processes end: their exit codes in words, and who handles the signals that end them."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, what `kill` and schedulers send first, and what comes when a terminal or its connection is closed."""


def how_it_ended(code: int) -> str:
    """Return how a process ended, as the end of a sentence. code: a negative one is the number of a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"was killed by signal {-code}"


def leave_terminal() -> None:
    """Have this process write to nothing where its terminal is gone: each write would fail."""
    for number in range(3):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(nothing, number)
                os.close(nothing)


@contextlib.contextmanager
def signals_handled(
    handler: Callable[[int, FrameType | None], object] | signal.Handlers, signals: Sequence[signal.Signals] = ENDING
) -> Iterator[None]:
    """Inside, `handler` handles these signals of this process, and afterwards who did so before. In another thread than
    the main one, which alone may set handlers, nothing changes. A hangup that `nohup` has ignored stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hung_up(number: int, frame: FrameType | None) -> None:
        leave_terminal()
        if callable(handler):
            handler(number, frame)

    heard = [n for n in signals if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    previous = {n: signal.signal(n, hung_up if n == signal.SIGHUP else handler) for n in heard}
    try:
        yield
    finally:
        for number, handler_before in previous.items():
            signal.signal(number, handler_before)
