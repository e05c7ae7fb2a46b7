"""`python -m sat_slime.cli.tied PID ARGUMENTS` is the command `sat-slime`, which ends as by SIGTERM when
process PID ends.

A cell of a grid is started so where no fork server does it: a grid that is killed leaves nothing running, and its cells
have saved what they did.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tie_to(parent: int) -> None:
    """Have the kernel send SIGTERM to this process once its parent is gone; exit at once if it is gone already. Only
    Linux does so: elsewhere the process outlives its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # the parent went before the kernel was told
        sys.exit(130)


if __name__ == "__main__":
    tie_to(int(sys.argv[1]))
    del sys.argv[1]
    from sat_slime.cli import main

    main()
