"""The stabilizers: a module for each, named after it, with its settings, its formula, its row of the table, its names.

A new one is a module here and a line in MODULES. One that is not ours is a module anywhere, given by its dotted path.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from ..stabilizer import Row, Stabilizer

MODULES = (
    # Bases, in the order of Table designspace.
    "ppo",
    "grpo",
    "trpo",
    "dppo",
    "spo",
    "drpo",
    "icepop",
    "kpop",
    "gspo",
    "seqclip",
    # Beside them, in the order in which a method's name has them.
    "sat",
    "tis",
    "r3",
    "topp",
)


def stabilizer_in(module: ModuleType) -> type[Stabilizer]:
    """The stabilizer that a module defines. Raises ValueError where it defines none, or several."""
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Stabilizer) and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(kind.__name__ for kind in found) or "none"
        raise ValueError(
            f"{module.__name__} defines {names}: a stabilizer's module defines one subclass of Gate, Weight, Penalty "
            "or another kind of sat_slime.objective.stabilizer"
        )
    return found[0]


STABILIZERS: dict[str, type[Stabilizer]] = {
    name: stabilizer_in(importlib.import_module(f"{__name__}.{name}")) for name in MODULES
}
"""By name."""


_OUTSIDE: dict[str, type[Stabilizer]] = {}
"""Those that are not ours and were asked for, by their dotted path."""


def stabilizer_at(path: str) -> type[Stabilizer]:
    """The stabilizer of a module outside this package, such as `my_package.my_module`.

    Raises:
        ValueError: the module cannot be imported, or holds no base; says what to do.
    """
    if path in _OUTSIDE:
        return _OUTSIDE[path]
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise ValueError(
            f"{path} cannot be imported ({error}): name a module that Python finds, on every machine of the run"
        ) from error
    kind = stabilizer_in(module)
    if kind.place != "base":
        raise ValueError(f"{path}: {kind.__name__} stands beside a base, and is none: leave `place` out")
    if kind.name in STABILIZERS:
        raise ValueError(f"{path}: {kind.__name__}.name is {kind.name!r}, the name of one of ours: choose another")
    _OUTSIDE[path] = kind
    return kind


def forget_those_outside() -> None:
    """As if none of them had been asked for."""
    _OUTSIDE.clear()


def known() -> tuple[type[Stabilizer], ...]:
    """Ours, and those that are not and were asked for."""
    return (*STABILIZERS.values(), *_OUTSIDE.values())


def find(name: str) -> type[Stabilizer] | None:
    """The stabilizer of that name, or at that dotted path. None: there is none. Raises ValueError as stabilizer_at."""
    return stabilizer_at(name) if "." in name else STABILIZERS.get(name)


def bases() -> list[type[Stabilizer]]:
    """Those that a method can be built on."""
    return [kind for kind in STABILIZERS.values() if kind.place == "base"]


def switches() -> list[type[Stabilizer]]:
    """Those that are switched on beside a base."""
    return [kind for kind in STABILIZERS.values() if kind.place != "base"]


def rows() -> dict[str, Row]:
    """The table of the design space, by the name of a part of a method."""
    table: dict[str, Row] = {}
    for name, kind in STABILIZERS.items():
        if "row" in vars(kind):  # GRPO's is PPO's
            table[name] = kind.row
            table |= {f"{name}-{variant.name}": variant.row for variant in kind.variants}
    return table
