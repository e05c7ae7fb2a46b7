"""The stabilizers: a module for each, named after it, with its settings, its formula, its row of the table, its names.

They live in rooms by what they are: clips, gates, weights, scores, penalties, and what the runtime does. A new one is
a module here and a line in MODULES. One that is not ours is a module anywhere, given by its dotted path.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from types import ModuleType
from typing import get_args

from ... import outside
from ..batch import Need
from ..stabilizer import Clipping, Gate, Penalty, Replacement, Row, Score, Stabilizer, StepConstraint, Weight

MODULES = (
    # Bases: those of Table designspace in its order, then the newer ones.
    "clips.ppo",
    "clips.grpo",
    "runtime.trpo",
    "gates.dppo",
    "penalties.spo",
    "penalties.drpo",
    "gates.icepop",
    "gates.kpop",
    "clips.gspo",
    "gates.seqclip",
    "clips.gmpo",
    "clips.cpgd",
    "gates.m2po",
    "gates.m2po_lag",
    "scores.cispo",
    "scores.rollout_is",
    "scores.topr",
    "scores.aspo",
    "scores.gipo",
    "scores.flash",
    "scores.vespo",
    "scores.score_centering",
    "penalties.sapo",
    "penalties.ipo",
    "penalties.dro",
    # Beside them, in the order in which a method's name has them: a name that ends another stands before it.
    "clips.sat",
    "clips.lag_power",
    "clips.bapo",
    "clips.target_clip",
    "clips.kl_budget",
    "clips.anneal",
    "weights.tis",
    "weights.seq_tis",
    "weights.seq_mask_tis",
    "weights.decoupled",
    "runtime.a3po",
    "gates.mis_geo",
    "gates.opsm",
    "gates.trm_max",
    "gates.trm_mean",
    "gates.veto",
    "runtime.r3",
    "runtime.topp",
    "runtime.vcpo",
)


def stabilizer_in(module: ModuleType) -> type[Stabilizer]:
    """Return the stabilizer that a module defines. Raises ValueError where it defines none, or several."""
    kinds = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Stabilizer) and value.__module__ == module.__name__
    ]
    if len(kinds) != 1:
        names = ", ".join(kind.__name__ for kind in kinds) or "none"
        raise ValueError(
            f"{module.__name__} defines {names}: a stabilizer's module defines one subclass of Gate, Weight, Penalty "
            "or another kind of sat_slime.objective.stabilizer"
        )
    return kinds[0]


_KINDS = [stabilizer_in(importlib.import_module(f"{__name__}.{module}")) for module in MODULES]
STABILIZERS: dict[str, type[Stabilizer]] = {kind.name: kind for kind in _KINDS}
"""The stabilizers of this package, by name."""


_OUTSIDE: dict[str, type[Stabilizer]] = {}
"""Stabilizers outside this package that were asked for, by their dotted path."""


def stabilizer_at(path: str) -> type[Stabilizer]:
    """Return the stabilizer of a module outside this package, such as `my_package.my_module`.

    Raises:
        ValueError: the module cannot be imported, or holds no base; says what to do.
    """
    if path in _OUTSIDE:
        return _OUTSIDE[path]
    outside.importing(path)
    try:
        module = importlib.import_module(path)
    except Exception as error:  # whatever a module does as it is imported, such as a SyntaxError
        what = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{path} cannot be imported ({what}): name a module that Python finds, on every machine of the run"
        ) from error
    kind = stabilizer_in(module)
    if fault := _fault(kind):
        raise ValueError(f"{path}: {kind.__name__}{fault}")
    _OUTSIDE[path] = kind
    return kind


_COMPUTED_BY: dict[type[Stabilizer], str] = {
    Gate: "factor",
    Weight: "factor",
    Penalty: "surrogate",
    Score: "weight",
    Replacement: "values",
    StepConstraint: "stands",
}
"""The function that each kind of base has to define."""


def _fault(kind: type[Stabilizer]) -> str:
    """Return what keeps a class that is not ours from being a base, with the remedy; empty where nothing does."""
    if kind.place != "base":
        return " stands beside a base, and is none: leave `place` out"
    name = getattr(kind, "name", "")
    if not re.fullmatch(r"\w+", name):
        return f".name is {name!r}: set it to the word that its metrics begin with, such as 'mine'"
    if name in STABILIZERS:
        return f".name is {name!r}, the name of one of ours: choose another"
    if missing := [what for what in ("row", "style") if getattr(kind, what, None) is None]:
        return f" has no {' and no '.join(missing)}: see docs/stabilizers.md"
    parameters = vars(kind).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        return " is no frozen dataclass: write @dataclass(frozen=True) above it"
    if unset := [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]:  # type: ignore[arg-type]
        return f".{unset[0]} has no default: give every setting one"
    if unknown := set(kind().needs) - set(get_args(Need)):
        return f".needs has {', '.join(map(repr, sorted(unknown)))}: a batch has {', '.join(get_args(Need))}"
    computed = next((base for base in _COMPUTED_BY if issubclass(kind, base)), None)
    if computed is None and not issubclass(kind, Clipping):
        return " computes nothing of the loss: let it be a Gate, Weight, Penalty, Score, Replacement or StepConstraint"
    if computed and getattr(kind, _COMPUTED_BY[computed]) is getattr(computed, _COMPUTED_BY[computed]):
        return f" does not define `{_COMPUTED_BY[computed]}`, which a {computed.__name__} computes with"
    return ""


def imported() -> tuple[str, ...]:
    """Return the dotted paths of the stabilizers outside this package that were asked for."""
    return tuple(_OUTSIDE)


def known() -> tuple[type[Stabilizer], ...]:
    """Return the stabilizers of this package, and those outside it that were asked for."""
    return (*STABILIZERS.values(), *_OUTSIDE.values())


def find(name: str) -> type[Stabilizer] | None:
    """Return the stabilizer of that name, or at that dotted path. None: there is none. Raises ValueError as
    stabilizer_at."""
    return stabilizer_at(name) if "." in name else STABILIZERS.get(name)


def bases() -> list[type[Stabilizer]]:
    """Return the stabilizers that a method can be built on."""
    return [kind for kind in STABILIZERS.values() if kind.place == "base"]


def switches() -> list[type[Stabilizer]]:
    """Return the stabilizers that are switched on beside a base."""
    return [kind for kind in STABILIZERS.values() if kind.place != "base"]


def rows() -> dict[str, Row]:
    """Return the table of the design space, by the name of a part of a method."""
    table: dict[str, Row] = {}
    for name, kind in STABILIZERS.items():
        if "row" in vars(kind):  # GRPO's is PPO's
            table[name] = kind.row
            table |= {f"{name}-{variant.name}": variant.row for variant in kind.variants}
    return table
