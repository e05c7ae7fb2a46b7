"""Methods by their names: labels, and partners without a stabilizer. A run may also bear a name that is none of a
method."""

from __future__ import annotations

import functools

from sat_slime.objective import PAPER_METHODS, Method, named_method
from sat_slime.objective.method import imported

PAPER_ORDER = [method.name for method in PAPER_METHODS]
WITH = " with "
"""It stands between a method and the settings in which its runs differ."""


def method_called(name: str) -> Method | None:
    """Return the method of that name, whatever its settings. None: there is none, or its base is outside this package
    and no run's settings named it, or could not be imported here. A name, which may be a folder's, has nothing
    imported."""
    name = name.partition(WITH)[0]
    if "." in name and not any(path in name for path in imported()):
        return None
    return _named(name)


@functools.cache
def _named(name: str) -> Method | None:
    try:
        return named_method(name)
    except ValueError:
        return None


def _behind(name: str) -> str:
    """Return what stands behind the method in a name."""
    return name.removeprefix(name.partition(WITH)[0])


def label_of(name: str) -> str:
    """Return `sat-gspo-r3` as the paper writes it, `SAT-GSPO w/ R3`, settings behind it; other names as they are."""
    method = method_called(name)
    return method.label + _behind(name) if method else name


def has(name: str, stabilizer: str) -> bool:
    """Say whether a method of that name has the stabilizer."""
    method = method_called(name)
    return method is not None and method.has(stabilizer)


def pairs_without(stabilizer: str, names: list[str]) -> list[tuple[str, str]]:
    """Return (name, name of that method without the stabilizer) of the methods that have it, with its settings."""
    methods = [(method_called(name), _behind(name)) for name in names if has(name, stabilizer)]
    return [(method.name + on, method.without(stabilizer).name + on) for method, on in methods if method]
