"""Modules outside this package that settings name by a dotted path, such as a stabilizer of the user's own.

To import a module is to run it. Commands that start something with the settings do so, and say it; those that list and
read run folders, which may come from anybody, import none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_refused = False
_tell: Callable[[str], object] | None = None
_told: set[str] = set()


def importing(path: str) -> None:
    """Say that the module or object at a dotted path is about to be imported. Raises ValueError where none may be."""
    if _refused:
        raise ValueError(f"{path} is not of this package, and a command that reads a folder does not import it")
    if _tell and path not in _told:
        _tell(path)
        _told.add(path)


def are_refused() -> bool:
    """Return whether no such module may be imported: what its settings mean is then not known."""
    return _refused


@contextmanager
def refused() -> Iterator[None]:
    """Inside, in all threads, no module outside this package is imported for a setting that names it."""
    global _refused
    before, _refused = _refused, True
    try:
        yield
    finally:
        _refused = before


@contextmanager
def said(tell: Callable[[str], object]) -> Iterator[None]:
    """Inside, `tell` gets the dotted path of each module before it is imported, once."""
    global _tell
    before, _tell = _tell, tell
    _told.clear()
    try:
        yield
    finally:
        _tell = before
