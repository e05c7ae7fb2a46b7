"""Section: what every part of a configuration is; the bounds of its numbers, and the marks of its fields.

A mark says what a change of a setting means. A field bears it in its type, and nobody keeps a list of keys:

    iterations: Annotated[PositiveInt, MAY_CHANGE_ON_RESUME] = 200

A mark on a field that holds a section is of all settings in that section.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from sat_slime.tasks import Task, find

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """Base of all sections: unknown keys and non-finite numbers are errors, docstrings are descriptions."""

    model_config = ConfigDict(
        extra="forbid", validate_default=True, use_attribute_docstrings=True, frozen=True, allow_inf_nan=False
    )


class Mark(enum.Enum):
    """The meaning of a change of a setting."""

    MAY_CHANGE_ON_RESUME = enum.auto()
    """A run that is resumed may change it: its checkpoint fits all the same, and what was trained stays as it is."""
    COMPUTES_NOTHING = enum.auto()
    """Runs that differ in it alone have the same numbers, so a comparison does not tell it."""
    OWN_TO_A_CELL = enum.auto()
    """It tells the cells of a grid apart by method, lag or seed, so a comparison tells it in their names."""


MAY_CHANGE_ON_RESUME = Mark.MAY_CHANGE_ON_RESUME
COMPUTES_NOTHING = Mark.COMPUTES_NOTHING
OWN_TO_A_CELL = Mark.OWN_TO_A_CELL


@dataclass(frozen=True)
class OfFlags:
    """On a field that holds flags: the mark is of these alone."""

    mark: Mark
    flags: frozenset[str]


def marked(model: type[BaseModel], mark: Mark) -> frozenset[str]:
    """Return the dotted keys of the settings and sections of `model` that bear `mark` themselves."""
    return frozenset(_marked(model, mark))


def _marked(model: type[BaseModel], mark: Mark, prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if mark in field.metadata:
            yield prefix + name
            continue
        for of in field.metadata:
            if isinstance(of, OfFlags) and of.mark is mark:
                yield from (f"{prefix}{name}.{flag}" for flag in of.flags)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _marked(field.annotation, mark, f"{prefix}{name}.")


def among(key: str, keys: Collection[str]) -> bool:
    """Return whether a dotted key is one of `keys`, or in a section that is."""
    return key in keys or any(key.startswith(f"{section}.") for section in keys)


def differences(old: BaseModel, new: BaseModel) -> list[tuple[str, Any, Any]]:
    """Return (dotted key, old value, new value) of every setting that differs."""
    before, after = _flat(old.model_dump()), _flat(new.model_dump())
    return [(key, before.get(key), after.get(key)) for key in {**before, **after} if before.get(key) != after.get(key)]


def kept_changes(old: BaseModel, new: BaseModel, also_kept: Collection[str] = ()) -> str:
    """Return the settings that differ and that a resumed run has to keep, as `key (old -> new)` after one another.

    also_kept: keys that may not change here, although a resumed run may change them.
    """
    free = marked(type(new), MAY_CHANGE_ON_RESUME) - set(also_kept)
    return ", ".join(
        f"{key} ({before!r} -> {after!r})" for key, before, after in differences(old, new) if not among(key, free)
    )


def kept_settings(config: BaseModel) -> dict[str, Any]:
    """Return the settings that a resumed run has to keep, as JSON by dotted keys, for the note of what a checkpoint was
    made with. Name and folder are left out: a run may be moved."""
    free = {*marked(type(config), MAY_CHANGE_ON_RESUME), "name", "output_dir"}
    return {key: value for key, value in _flat(config.model_dump(mode="json")).items() if not among(key, free)}


def changed_since(noted: Mapping[str, Any], config: BaseModel) -> str:
    """Return the settings that differ from `kept_settings` as they were noted, as `key (old -> new)` after one another.
    A setting that only one of them has came or went with a version of this package."""
    now = kept_settings(config)
    return ", ".join(
        f"{key} ({value!r} -> {now[key]!r})" for key, value in noted.items() if key in now and now[key] != value
    )


def changed_settings(old: BaseModel, new: BaseModel) -> str | None:
    """Return what is wrong with resuming a run of the settings `old` with those of `new`, or None."""
    changed = kept_changes(old, new)
    if not changed:
        return None
    return (
        f"a resumed run keeps its settings, but these differ: {changed}; leave them as they were, or start another run "
        "with --name X"
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def section_class(field: FieldInfo, values: Any = None) -> type[BaseModel] | None:
    """Return the class of the section that a field holds, or None where it holds a value. That of a task is chosen by
    the name in `values`, which are those of the section: without a name the default's, None for one that is unknown."""
    kind = field.annotation
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return None
    if kind is not Task:
        return kind
    if not (isinstance(values, Mapping) and "name" in values):
        return type(field.default)
    try:
        return find(str(values["name"]))
    except ValueError:
        return None
