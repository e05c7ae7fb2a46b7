"""Interruption by Ctrl-C, SIGTERM or a closed terminal: when a run ends at once, and when after the iteration."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sat_slime.config.exits import signals_handled

ONE_ACT_S = 1.0
"""Signals within these seconds are one wish to end: `pkill` reaches the driver directly and through the launcher."""


@dataclass
class Interruption:
    """Tells what Ctrl-C, SIGTERM and SIGHUP have asked for.

    While the loop runs, the first signal asks for an end after the iteration, which saves. Before the loop any signal
    ends the run at once, and so does a second one. After the loop they change nothing.
    """

    asked: bool = False
    """The run is to end after the iteration."""
    looping: bool = False
    """The loop runs."""
    over: bool = False
    """The loop has ended."""
    bell: int | None = None
    """A pipe that is written to when an end after the iteration is asked for. The handler itself must not ask the log
    to tell it, which may hold a lock while the signal comes, and must not write on a live view."""
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
        if self.bell is not None:
            os.write(self.bell, b"!")


ACKNOWLEDGED = "stopping after this iteration and a checkpoint; a second Ctrl-C stops at once, without one"


@contextmanager
def interruptible(tell: Callable[[str], object]) -> Iterator[Interruption]:
    """Inside, an Interruption handles SIGINT, SIGTERM and SIGHUP of this process. tell: is told at once, from a thread,
    that the run will end after the iteration."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption  # only the main thread may handle signals
        return
    heard, interruption.bell = os.pipe()

    def listen() -> None:
        while os.read(heard, 1):
            tell(ACKNOWLEDGED)
        os.close(heard)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        with signals_handled(interruption.handle):
            yield interruption
    finally:
        bell, interruption.bell = interruption.bell, None
        os.close(bell)
        listener.join()
