"""One process at a time in a folder."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from sat_slime.config.jsonl import read_object, to_json

LOOKS_S = (0.01, 0.05, 0.1)
"""Seconds between attempts: a process that only asks whether a lock is held has it for an instant."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock. The number alone may be another process's elsewhere, or later."""

    pid: int = 0
    """0: the lock does not tell."""
    host: str = ""
    machine: str = ""
    """Identifies the machine, since when it runs, and the container in which `pid` counts."""
    started: str = ""
    """When the process started, in the kernel's ticks since the boot."""

    @classmethod
    def here(cls, pid: int) -> Holder:
        """Return the process that has this number here and now. Raises OSError where there is none."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        machine = f"{boot} {os.readlink('/proc/self/ns/pid')}"
        return cls(pid, socket.gethostname(), machine, stat.rpartition(")")[2].split()[19])

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine and container, as far as is known."""
        with suppress(OSError):
            return not self.machine or Holder.here(os.getpid()).machine == self.machine
        return True

    def __str__(self) -> str:
        if not self.pid:
            return "a process that its lock does not name"
        elsewhere = "" if self.is_here else f" on {self.host}, in another container or since another boot"
        return f"process {self.pid}{elsewhere}"

    def signal(self, numbers: Sequence[signal.Signals], pause_s: float = 0.0) -> bool:
        """Send it signals, with pauses between; returns whether it is a process of this machine that could be sent
        them. No other process ever gets them."""
        try:
            process = os.pidfd_open(self.pid)
        except (OSError, TypeError, ValueError, OverflowError):
            return False
        try:
            if Holder.here(self.pid) != self:  # the descriptor is that of the process which had the number just now
                return False
            for number in numbers:
                signal.pidfd_send_signal(process, number)
                time.sleep(pause_s)
        except ProcessLookupError:
            pass  # it has ended
        except OSError:
            return False
        finally:
            os.close(process)
        return True


class FolderLock:
    """A lock that the kernel drops with its process, however that ends, so there is never a stale one to clean up."""

    def __init__(self, path: Path):
        self.path = path
        self._file: IO[str] | None = None

    def take(self) -> Holder | None:
        """Hold the lock until `release` or the end of this process. Returns who has it where another does, else None.
        Raises OSError where the file system does not lock files."""
        file = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115 - held while the work goes on
        for patience_s in (*LOOKS_S, 0.0):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError):  # another process has it
                time.sleep(patience_s)
            except OSError as error:  # such as ENOLCK and ENOSYS
                file.close()
                raise OSError(error.errno, "its file system does not lock files", str(self.path)) from None
        else:
            file.close()
            return self._noted()
        holder = Holder(os.getpid())
        with suppress(OSError):
            holder = Holder.here(os.getpid())
        file.truncate(0)
        file.write(to_json(asdict(holder)))
        file.flush()
        self._file = file
        return None

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def holder(self) -> Holder | None:
        """Return the process that holds the lock; None where none does."""
        return self._noted() if self.is_held() else None

    def was_here(self) -> bool:
        """Return whether the process that had the lock last was one of this machine, as far as it tells."""
        return self._noted().host in ("", socket.gethostname())

    def _noted(self) -> Holder:
        try:
            return Holder(**read_object(self.path))
        except (OSError, TypeError):
            return Holder()

    def is_held(self) -> bool:
        """Return whether a living process, this one included, holds the lock."""
        if self._file is not None:
            return True
        try:
            with open(self.path, encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:  # else there is none, it is not ours to read, or none can be held
            return isinstance(error, BlockingIOError)
        return False
