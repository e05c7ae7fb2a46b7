"""Says in words how a process ended."""

from __future__ import annotations

import signal

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
