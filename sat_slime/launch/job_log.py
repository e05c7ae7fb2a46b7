"""Runs the command of a job, and writes what it says to the log of the run, without secrets:

    python3 -m sat_slime.launch.job_log LOG COMMAND...

The same goes to Ray, and the exit code is the command's. A log that cannot be written does not end the job.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO

from sat_slime.launch.secrets import redact

PR_SET_PDEATHSIG = 1
REST_S = 5.0
"""Seconds for what is still to be read when the command has ended: a process that it left may hold its output."""


def main(log: str, *command: str) -> None:
    """End with the command's exit code, as a shell has it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # Ray tells the command, too, whose last words are wanted
    # A driver whose job is over for Ray must not train on.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=ends_with_this())
    assert process.stdout is not None
    reader = threading.Thread(target=write_lines, args=(process.stdout, log), daemon=True)
    reader.start()
    code = process.wait()
    reader.join(REST_S)
    os._exit(code if code >= 0 else 128 - code)


def ends_with_this() -> Callable[[], None]:
    """Return what a new process does first, so that on Linux it gets SIGTERM when this one ends, however it does."""
    this, libc = os.getpid(), ctypes.CDLL(None)

    def prepare() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if sys.platform == "linux":
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != this:  # it went before the kernel was told
                os._exit(1)

    return prepare


def write_lines(output: IO[bytes], log: str) -> None:
    """Write each line of an output to the log and to standard output as it comes."""
    with contextlib.ExitStack() as stack:
        files = [sys.stdout.buffer]
        with contextlib.suppress(OSError):
            files.append(stack.enter_context(open(log, "ab", buffering=0)))
        for line in output:
            text = redact(line.decode(errors="replace").rstrip("\n")) + "\n"
            for file in files:
                with contextlib.suppress(OSError):
                    file.write(text.encode())
                    file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
