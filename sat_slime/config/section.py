"""Section: what every part of a configuration is, and the marks of its fields.

A mark says what a change of a setting means. A field bears it in its type, and nobody keeps a list of keys:

    iterations: Annotated[pydantic.PositiveInt, MAY_CHANGE_ON_RESUME] = 200

A mark on a field that holds a section is of all settings in that section; one on the field that holds slime's flags is
a key of a dictionary, `{mark: flags}`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Collection, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails


class Section(BaseModel):
    """Base of all sections: unknown keys, non-finite numbers and yes for 1 are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_default=True, frozen=True, allow_inf_nan=False)


def refused(faults: Mapping[tuple[str, ...], str]) -> None:
    """Raise a ValidationError with a fault for each path, where there are any."""
    lines: list[InitErrorDetails] = [
        {"type": "value_error", "loc": path, "input": None, "ctx": {"error": ValueError(text)}}
        for path, text in faults.items()
    ]
    if lines:
        raise ValidationError.from_exception_data("section", lines)


MAY_CHANGE_ON_RESUME = "may change on resume"
"""Mark: a resumed run may change it: its checkpoint fits all the same, and what was trained stays as it is."""
COMPUTES_NOTHING = "computes nothing"
"""Mark: runs that differ in it alone have the same numbers, so a comparison does not tell it."""
OWN_TO_A_CELL = "own to a cell"
"""Mark: it tells the cells of a grid apart by method, lag or seed, so a comparison tells it in their names."""


def marked(model: type[BaseModel], mark: str, prefix: str = "") -> frozenset[str]:
    """Return the dotted keys of the settings and sections of `model` that bear `mark` themselves."""
    keys: set[str] = set()
    for name, field in model.model_fields.items():
        if mark in field.metadata:
            keys.add(prefix + name)
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys |= marked(field.annotation, mark, f"{prefix}{name}.")
        else:
            flags = (flag for of in field.metadata if isinstance(of, dict) for flag in of.get(mark, ()))
            keys |= {f"{prefix}{name}.{flag}" for flag in flags}
    return frozenset(keys)


def among(key: str, keys: Collection[str]) -> bool:
    """Return whether a dotted key is one of `keys`, or in a section that is."""
    return key in keys or any(key.startswith(f"{section}.") for section in keys)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def differences(old: Any, new: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, old value, new value) of every setting that differs."""
    before, after = (each.model_dump() if isinstance(each, BaseModel) else each for each in (old, new))
    for key in {**before, **after}:
        values = before.get(key), after.get(key)
        if all(isinstance(value, Mapping) for value in values):
            yield from differences(*values, f"{prefix}{key}.")
        elif values[0] != values[1]:
            yield f"{prefix}{key}", *values


def kept_settings(config: BaseModel, also_kept: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings that a resumed run has to keep, as JSON by dotted keys, which a checkpoint notes.
    also_kept: keys that it might change, but not here."""
    free = marked(type(config), MAY_CHANGE_ON_RESUME) - set(also_kept)  # with name and folder: a run may be moved
    return {key: value for key, value in flat(config.model_dump(mode="json")).items() if not among(key, free)}


def changed_since(noted: Mapping[str, Any], config: BaseModel, also_kept: Collection[str] = ()) -> str:
    """Return the settings that differ from `kept_settings` as they were noted, as `key (old -> new)` after one another.
    A setting that only one of them has came or went with a version of this package, but for those of stabilizers, and
    flags of slime that are not off."""
    now, found = kept_settings(config, also_kept), []
    for key, old, new in differences(noted, now):
        is_flag = key.startswith("slime.") and not all(value is None or value is False for value in (old, new))
        if is_flag or key.startswith("method.") or (key in noted and key in now):
            found.append(f"{key} ({old!r} -> {new!r})")
    return ", ".join(found)


def meanings(kind: type) -> dict[str, str]:
    """Return the docstring below each setting of a class of settings, by its name."""
    docs: dict[str, str] = {}
    for each in reversed(kind.__mro__[: kind.__mro__.index(object)]):
        if each.__module__.startswith("pydantic"):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        for field, below in itertools.pairwise(getattr(tree, "body", ())):
            match field, below:
                case ast.AnnAssign(target=target), ast.Expr(value=ast.Constant(value=text)):
                    docs[ast.unparse(target)] = inspect.cleandoc(str(text))
    return {name: docs.get(name, "") for name in settings_of(kind)}


def settings_of(kind: type) -> dict[str, FieldInfo]:
    """Return the settings of a section or of a dataclass of settings, by their names."""
    if issubclass(kind, BaseModel):
        return dict(kind.model_fields)
    return {field.name: FieldInfo(default=field.default) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]


def section_of(field: FieldInfo) -> type | None:
    """Return the class of the section, or of the stabilizer's settings, that a field holds; None: it holds a value."""
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
    return next((kind for kind in kinds if issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)), None)
