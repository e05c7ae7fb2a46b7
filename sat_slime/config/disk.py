"""What the file system refuses, told with the path that was written to."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_IN_A_TEXT = ("SafetensorError", "ActorFailure")
"""Types, by the names that their modules give them, that hand the refusal of a write on in a text alone. The text of
any other may quote somebody else's."""


def disk_is_full(error: BaseException) -> bool:
    """Whether `error`, of whatever type, tells of a full disk or quota."""
    return _full(error) is not None


def _full(error: BaseException) -> int | None:
    """The number of a full disk or quota."""
    number = getattr(error, "errno", None)
    if number is None and _tells_in_a_text(error):
        first_line = str(error).partition("\n")[0]  # logs are quoted in those that follow
        return next((number for number in _FULL if os.strerror(number) in first_line), None)
    return number if number in _FULL else None


def _tells_in_a_text(error: BaseException) -> bool:
    return isinstance(error, shutil.Error) or any(base.__name__ in _IN_A_TEXT for base in type(error).__mro__)


def _names_a_file(error: BaseException, number: int) -> bool:
    if isinstance(error, shutil.Error):  # those of a whole folder, as a list of tuples
        return False
    return getattr(error, "filename", None) is not None or f"{os.strerror(number)}: '" in str(error)


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """An OSError inside that names no file, as those of writing, flushing and closing, names `path`. So does a full
    disk that a copy of a folder, safetensors or a rank tells, which becomes an OSError. For writes below `path` and
    nothing else: what else fails inside would name it too."""
    try:
        yield
    except Exception as error:
        number = _full(error) or getattr(error, "errno", None)
        if number is None or _names_a_file(error, number):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error
