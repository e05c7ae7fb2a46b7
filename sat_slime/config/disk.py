"""The errors of a full disk or of a path that cannot be written name the path."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_IN_A_TEXT = ("SafetensorError", "PartFailure")
"""Names of exception types that tell a refused write only in their text. The text of any other type may quote the error
of somebody else."""


def disk_is_full(error: BaseException) -> bool:
    """Return whether `error`, of whatever type, tells of a full disk or quota."""
    return _full(error) is not None


def _full(error: BaseException) -> int | None:
    """Return the errno of a full disk or quota; None where `error` tells of none."""
    number = getattr(error, "errno", None)
    if number is None and _tells_in_a_text(error):
        first_line = str(error).partition("\n")[0]  # logs are quoted in those that follow
        return next((number for number in _FULL if os.strerror(number) in first_line), None)
    return number if number in _FULL else None


def _tells_in_a_text(error: BaseException) -> bool:
    return isinstance(error, shutil.Error) or any(base.__name__ in _IN_A_TEXT for base in type(error).__mro__)


def _names_a_file(error: BaseException, number: int) -> bool:
    if isinstance(error, shutil.Error):  # it tells the errors of a whole folder, as a list of tuples
        return False
    return getattr(error, "filename", None) is not None or f"{os.strerror(number)}: '" in str(error)


def is_replaceable(folder: Path, marks: Sequence[str]) -> bool:
    """Return whether a folder may be deleted to be made anew: it is not there, is empty, or holds all of `marks`, by
    which a folder of ours is known. A link is none, since what it leads to may be anything."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        return False
    return not folder.exists() or not any(folder.iterdir()) or all((folder / mark).exists() for mark in marks)


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Have an OSError inside that names no file, such as one of writing, flushing and closing, name `path` afterwards.
    So does a full disk that the copy of a folder, safetensors or a rank reports: its error becomes an OSError. Only
    writes below `path` belong inside, since anything else that fails would name it too."""
    try:
        yield
    except Exception as error:
        number = _full(error) or getattr(error, "errno", None)
        if number is None or _names_a_file(error, number):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error
