"""What Ctrl-C and SIGTERM do to a run, and when."""

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
"""Signals within it are one wish to end: `pkill` reaches the driver twice, by itself and through the launcher."""


@dataclass
class Interruption:
    """Ctrl-C and SIGTERM: while the loop runs the first one asks for an end after the iteration, which saves; before
    that, and the second time, they end the run at once. After the loop they change nothing."""

    asked: bool = False
    looping: bool = False
    over: bool = False
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
        # Not through the log: a signal may come while that holds a lock.
        os.write(2, b"\nending after this iteration and a checkpoint; once more to end at once\n")


@contextmanager
def interruptible() -> Iterator[Interruption]:
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
