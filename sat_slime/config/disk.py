"""What the file system refuses, told with the path that was written to."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)


def disk_is_full(error: BaseException) -> bool:
    """Whether `error`, of whatever type, tells of a full disk or quota."""
    return _full(error) is not None


def _full(error: BaseException) -> int | None:
    """The number of a full disk or quota. safetensors, shutil's copies and Ray hand it on in a text alone."""
    number = getattr(error, "errno", None)
    if number is None:
        return next((number for number in _FULL if os.strerror(number) in str(error)), None)
    return number if number in _FULL else None


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """An OSError inside that names no file, as those of writing, flushing and closing, names `path`. So does a full
    disk that an error of another type tells, which becomes an OSError."""
    try:
        yield
    except Exception as error:
        number = _full(error) or getattr(error, "errno", None)
        if number is None or getattr(error, "filename", None) is not None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error
