"""One process at a time in a folder."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

LOOKS_S = (0.01, 0.05, 0.1)
"""Seconds between attempts: a process that only asks whether a lock is held has it for an instant."""


class FolderLock:
    """A lock that the kernel drops with its process, however that ends, so there is never a stale one to clean up."""

    def __init__(self, path: Path):
        """path: the lock's file, in the folder that it is for."""
        self.path = path
        self._file: IO[str] | None = None

    def take(self) -> str | None:
        """Hold the lock until `release` or the end of this process. Returns which process has it where another does,
        else None."""
        file = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115 - held while the work goes on
        for patience_s in (*LOOKS_S, None):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if patience_s is not None:
                    time.sleep(patience_s)
        else:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            return f"process {holder}"
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file
        return None

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def is_mine(self) -> bool:
        """True while this object holds the lock."""
        return self._file is not None

    def holder(self) -> int | None:
        """Return the number of the process that holds the lock; None where none does."""
        if not self.is_held():
            return None
        text = self.path.read_text(encoding="utf-8").strip()
        return int(text) if text.isdigit() else None

    def is_held(self) -> bool:
        """Return whether a living process, this one included, holds the lock."""
        if self.is_mine:
            return True
        try:
            with open(self.path, encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return False
