"""Modules outside this package that settings name by a dotted path, such as a stabilizer of the user's own.

To import a module is to run it. Commands that start something with the settings do so, and say it; those that list and
read run folders, which may come from anybody, import none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache

_before_import: Callable[[str], object] | None = None


def importing(path: str) -> None:
    """Say that the module or object at a dotted path is about to be imported. Raises ValueError where none may be."""
    if _before_import:
        _before_import(path)


def are_refused() -> bool:
    """Return whether no such module may be imported: what its settings mean is then not known."""
    return _before_import is _refuse


def refused() -> AbstractContextManager[None]:
    """Inside, in all threads, no module outside this package is imported for a setting that names it."""
    return _calling(_refuse)


def said(tell: Callable[[str], object]) -> AbstractContextManager[None]:
    """Inside, `tell` gets the dotted path of each module before it is imported, once."""
    return _calling(cache(tell))


def _refuse(path: str) -> None:
    raise ValueError(f"{path} is not of this package, and a command that reads a folder does not import it")


@contextmanager
def _calling(before_import: Callable[[str], object]) -> Iterator[None]:
    global _before_import
    outer, _before_import = _before_import, before_import
    try:
        yield
    finally:
        _before_import = outer
