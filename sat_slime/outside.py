"""Modules outside this package that settings name by a dotted path, such as a stabilizer of the user's own.

To import a module is to run it. Whoever starts something with the settings does so; commands that list and read run
folders, which may come from anybody, import none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_refused = False
_imported: dict[str, None] = {}


def importing(path: str) -> None:
    """Note that the module or object at a dotted path is about to be imported. Raises ValueError where none may be."""
    if _refused:
        raise ValueError(f"{path} is not of this package, and a command that reads a folder does not import it")
    _imported[path] = None


def are_refused() -> bool:
    """Return whether no such module may be imported: what its settings mean is then not known."""
    return _refused


def imported() -> list[str]:
    """Return the dotted paths that were imported, the first one first."""
    return list(_imported)


@contextmanager
def refused() -> Iterator[None]:
    """Inside, in all threads, no module outside this package is imported for a setting that names it."""
    global _refused
    before, _refused = _refused, True
    try:
        yield
    finally:
        _refused = before
