"""The methods that a comparison is of, by their names: a run may also bear a name that is none of a method."""

from __future__ import annotations

import functools

from sat_slime.objective import PAPER_METHODS, Method, named_method
from sat_slime.objective.stabilizers import imported

PAPER_ORDER = [method.name for method in PAPER_METHODS]


def method_called(name: str) -> Method | None:
    """The method of that name. None: there is none, or its base is outside this package and no run's settings named it,
    or could not be imported here. A name, which may be a folder's, has nothing imported."""
    if "." in name and not any(path in name for path in imported()):
        return None
    return _named(name)


@functools.cache
def _named(name: str) -> Method | None:
    try:
        return named_method(name)
    except ValueError:
        return None


def label_of(name: str) -> str:
    """`sat-gspo-r3` as the paper writes it, `SAT-GSPO w/ R3`; other names as they are."""
    method = method_called(name)
    return method.label if method else name


def has(name: str, stabilizer: str) -> bool:
    """Whether a method of that name has the stabilizer."""
    method = method_called(name)
    return method is not None and method.has(stabilizer)


def pairs_without(stabilizer: str, names: list[str]) -> list[tuple[str, str]]:
    """(name, name of that method without the stabilizer) of the methods that have it."""
    methods = [method for method in map(method_called, names) if method and method.has(stabilizer)]
    return [(method.name, method.without(stabilizer).name) for method in methods]


def stabilizers_beside(names: list[str]) -> list[str]:
    """Names of the stabilizers that methods of these names have beside their bases, in the order in which they come."""
    methods = [method for method in map(method_called, names) if method]
    beside = [one.name for method in methods for one in method.stabilizers if one is not method.base]
    return list(dict.fromkeys(beside))
