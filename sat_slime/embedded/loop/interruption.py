"""The interruption of a run by Ctrl-C or SIGTERM: when it ends at once, and when after the iteration."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ONE_ACT_S = 1.0
"""Signals within these seconds are one wish to end: `pkill` reaches the driver directly and through the launcher."""


@dataclass
class Interruption:
    """Tells what Ctrl-C and SIGTERM have asked for.

    While the loop runs, the first signal asks for an end after the iteration, which saves. Before the loop any signal
    ends the run at once, and so does a second one. After the loop they change nothing.
    """

    asked: bool = False
    """The run is to end after the iteration."""
    looping: bool = False
    """The loop runs."""
    over: bool = False
    """The loop has ended."""
    _asked_at: float = -math.inf

    def handle(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self.over or now - self._asked_at < ONE_ACT_S:
            return
        self._asked_at = now
        if self.asked or not self.looping:
            self.asked = True
            raise KeyboardInterrupt
        self.asked = True
        # The log is not asked to tell it: it may hold a lock while the signal comes.
        os.write(2, b"\nending after this iteration and a checkpoint; once more to end at once\n")


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Inside, an Interruption handles SIGINT and SIGTERM of this process."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption  # only the main thread may handle signals
        return
    previous = {number: signal.signal(number, interruption.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
