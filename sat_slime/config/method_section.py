"""The `method` section of a run, and the Method that it describes.

The section is made of the stabilizers' own settings: their fields, defaults, bounds and docstrings. `build_method` puts
their values back into the stabilizers, so that `method.clip.eps_low` becomes `Method.clip.eps_low`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, WrapValidator, create_model, model_validator
from pydantic_core import ErrorDetails

from sat_slime import outside
from sat_slime.config.section import OWN_TO_A_CELL, Section
from sat_slime.config.source import ConfigError, Source
from sat_slime.objective import SAT, Clip, Method, Stabilizer, compose, named_method
from sat_slime.objective.method import STABILIZERS, VARIANTS, bases, find, switches
from sat_slime.objective.terms import Denominator


def _base_or_path(value: Any, check: Any) -> Any:
    """Check a base: one of ours, or the dotted path of another whose module can be imported. Raises ValueError for the
    name of what stands beside a base."""
    beside = next((kind for kind in switches() if kind.name == value), None)
    if beside:
        raise ValueError(
            f"{value} stands beside a base: set method.{key_of(beside)} to true, and method.base to a base"
        )
    if not (isinstance(value, str) and "." in value):
        return check(value)
    if not outside.are_refused():
        find(value)  # raises where it cannot be imported
    return value


BaseName = Annotated[  # type: ignore[valid-type]
    Literal[tuple(kind.name for kind in bases())], WrapValidator(_base_or_path), OWN_TO_A_CELL
]


def key_of(kind: type[Stabilizer]) -> str:
    """Return its key in the section `method`."""
    return kind.key or kind.prefix()


def section_name(method: Method, stabilizer: Stabilizer) -> str:
    """Return the key in the section `method` below which the settings of one of its stabilizers are."""
    return "settings" if stabilizer is method.base and not method.base_is_ours else key_of(type(stabilizer))


def has_settings(kind: type[Stabilizer]) -> bool:
    """Return whether it has a section of its own."""
    return bool(dataclasses.fields(kind))  # type: ignore[arg-type]


_SECTIONS: dict[type, type[Section]] = {}


def section_of(settings: type) -> type[Section]:
    """Return the section of a dataclass of settings; that of a stabilizer beside a base can be switched on."""
    if settings not in _SECTIONS:
        _SECTIONS[settings] = _made(settings)
    return _SECTIONS[settings]


def _variant_keys(kind: type[Stabilizer]) -> list[str]:
    """Return the settings that tell its variants apart."""
    return list(dict.fromkeys(key for stem, settings in VARIANTS.values() if stem == kind.name for key in settings))


def _made(settings: type) -> type[Section]:
    hints, docs = typing.get_type_hints(settings, include_extras=True), _docstrings(settings)
    fields: dict[str, Any] = {}
    variant_keys = set()
    if issubclass(settings, Stabilizer):
        variant_keys = set(_variant_keys(settings))
        if settings.place != "base":
            fields["enabled"] = Annotated[bool, OWN_TO_A_CELL], Field(False, description="Switch it on.")
    for field in dataclasses.fields(settings):
        marked = Annotated[hints[field.name], OWN_TO_A_CELL] if field.name in variant_keys else hints[field.name]
        fields[field.name] = marked, Field(field.default, description=docs.get(field.name))
    return create_model(
        f"{settings.__name__}Section",
        __base__=_Settings,
        __doc__=inspect.getdoc(settings),
        __module__=__name__,
        **fields,
    )


_MADE = ConfigDict(use_attribute_docstrings=False)
"""Of sections that are made here, with descriptions: pydantic would look for their source in all modules there are."""


class _Settings(Section):
    """Base of the sections of stabilizers."""

    model_config = _MADE

    @model_validator(mode="after")
    def _sound(self) -> Any:
        """Raise what the stabilizer itself has against its settings."""
        kind = next((candidate for candidate in STABILIZERS.values() if isinstance(self, section_of(candidate))), None)
        if kind is not None:
            settings_of(kind, self)
        return self


def settings_of(kind: type[Stabilizer], section: Section) -> Stabilizer:
    """Return the stabilizer with the settings of its section. Raises ValueError where it refuses them."""
    return kind(**section.model_dump(exclude={"enabled"}))


def _docstrings(settings: type) -> dict[str, str]:
    """Return the docstring below each field of a class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            docs[ast.unparse(field.target)] = inspect.cleandoc(str(below.value.value))
    return docs


class _Method(Section):
    """The method: what is optimized. `method: sat-gspo-r3` is short for the base and the switches of that named
    method."""

    model_config = _MADE

    @model_validator(mode="before")
    @classmethod
    def _switches(cls, value: Any) -> Any:
        """`sat: true` and `tis: false` stand for the section with `enabled` set."""
        return expand_switches(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _of_another(self) -> Any:
        """method.settings is of a base that is not ours. Those that are left out get their defaults here, so that the
        run's config.yaml has them, as it has those of every other setting."""
        method = typing.cast("MethodConfig", self)
        if "." in method.base and outside.are_refused():
            return self
        if "." in method.base:
            method.settings.update(dataclasses.asdict(outside_settings(method)))  # type: ignore[call-overload]
        elif method.settings:
            kind = find(method.base)
            own = (
                f", or write those of {method.base} below method.{key_of(kind)}" if kind and has_settings(kind) else ""
            )
            raise ValueError(f"method.settings is for a base that is not ours: leave it out{own}")
        return self


def expand_switches(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the section with `sat: true` written out."""
    return {
        key: {"enabled": value} if key in SWITCHES and isinstance(value, bool) else value
        for key, value in values.items()
    }


SWITCHES = tuple(key_of(kind) for kind in switches() if has_settings(kind))
"""Sections that `true` and `false` stand for."""


def outside_settings(method: MethodConfig) -> Stabilizer:
    """Return the base that is not ours, with its settings out of method.settings. Raises ValueError where these do not
    fit."""
    kind = find(method.base)
    assert kind is not None, "it has been looked for"
    section = section_of(kind)
    try:
        return settings_of(kind, section.model_validate(method.settings))
    except ValidationError as error:
        raise ValueError("; ".join(_in_words(kind, section, detail) for detail in error.errors())) from None


def _in_words(kind: type[Stabilizer], section: type[Section], detail: ErrorDetails) -> str:
    """Return what is wrong with one of method.settings."""
    key = ".".join(["method", "settings", *map(str, detail["loc"])])
    if detail["type"] == "extra_forbidden":
        return f"{key} is no setting of {kind.name}, which has {', '.join(section.model_fields) or 'none'}"
    if detail["type"] == "value_error":
        return f"{key}: {detail['ctx']['error']}"
    return f"{key} is {detail['input']!r}: {detail['msg'].replace('Input should be', 'it must be')}"


def _summary(kind: type[Stabilizer]) -> str:
    """Return the docstring of a stabilizer in one line."""
    return " ".join((kind.__doc__ or "").split())


def _fields() -> dict[str, Any]:
    """Return the fields of the section, in its order."""

    def field(kind: type[Any], meaning: str) -> tuple[Any, Any]:
        section = section_of(kind)
        globals()[section.__name__] = section  # where pickle looks for it
        return section, Field(section(), description=meaning)

    beside = {
        key_of(kind): field(kind, _summary(kind))
        if has_settings(kind)
        else (Annotated[bool, OWN_TO_A_CELL], Field(False, description=_summary(kind)))
        for kind in switches()
    }
    return {
        "base": (
            BaseName,
            Field(
                "gspo",
                description="The base recipe: token ratio (grpo, ppo), sequence ratio (gspo), or another stabilizer of "
                "the design space; or the dotted path of a module with one of your own (docs/extend.md).",
            ),
        ),
        **beside,
        "denominator": (
            Annotated[Denominator | None, OWN_TO_A_CELL],
            Field(
                None,
                description="Denominator of the ratio: `rollout` (mu, the engine), `checkpoint` (the trainer under the "
                "generating weights), `trainer` (the trainer at the start of the step). Unset: what the method needs "
                "(a3po for A-3PO; checkpoint for SAT with a weight pi / mu, such as that of TIS, trainer for such a "
                "weight alone; else rollout).",
            ),
        ),
        "clip": field(Clip, "Base radii."),
        **{key_of(kind): field(kind, f"Settings of base {kind.name}.") for kind in bases() if has_settings(kind)},
        "settings": (
            dict[str, Any],
            Field(default_factory=dict, description="Settings of a base that is not ours, by their names."),
        ),
    }


if TYPE_CHECKING:

    class MethodConfig(_Method):
        """The section for type checkers, which cannot see the class that is made below."""

        base: str = "gspo"
        denominator: Denominator | None = None
        settings: dict[str, Any] = Field(default_factory=dict)

        def __getattr__(self, name: str) -> Any: ...
else:
    MethodConfig = create_model(
        "MethodConfig", __base__=_Method, __doc__=_Method.__doc__, __module__=__name__, **_fields()
    )


# ----------------------------------------------------------------------------------------------------------- the Method


def build_method(config: MethodConfig) -> Method:
    """Return the objective that `config` describes. Whether it means something is objective.check_method's."""
    return compose(
        _base(config),
        [_beside(kind, getattr(config, key_of(kind))) for kind in switches() if _is_on(getattr(config, key_of(kind)))],
        denominator=config.denominator,
        clip=Clip(**config.clip.model_dump()),
    )


def _base(config: MethodConfig) -> Stabilizer:
    kind = find(config.base)
    assert kind is not None, "the section has been checked"
    if "." in config.base:
        return outside_settings(config)
    return settings_of(kind, getattr(config, key_of(kind))) if has_settings(kind) else kind()


def _beside(kind: type[Stabilizer], value: Any) -> Stabilizer:
    return settings_of(kind, value) if has_settings(kind) else kind()


def _is_on(value: Any) -> bool:
    return value if isinstance(value, bool) else value.enabled


# ------------------------------------------------------------------------------------------ names and switches in files


def expand_shorthands(source: Source) -> dict[str, Any]:
    """Return the values of `source` with `method: sat-gspo-r3` and `method.sat: true` written out, so that files merge
    key by key whichever way they say it."""
    values = dict(source.values)
    method = values.get("method")
    if isinstance(method, str):
        try:
            method = method_switches(method)
        except ValueError as error:
            raise ConfigError([f"{source.origin(('method',))}: {error}"]) from None
    if isinstance(method, Mapping):
        values["method"] = expand_switches(method)
    return values


def without_settings_of_another(values: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` as `over` is laid upon it: without method.settings, where they are of a base that is not ours and
    `over` names another one, which could not read them."""
    method, new = values.get("method"), over.get("method")
    if not (isinstance(method, Mapping) and isinstance(new, Mapping) and "." in str(method.get("base"))):
        return values
    if new.get("base", method["base"]) == method["base"]:
        return values
    return {**values, "method": {key: value for key, value in method.items() if key != "settings"}}


def without_what_is_off(values: dict[str, Any], layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return `values`, which are `layers` laid over one another, without the settings of a stabilizer that a later
    layer switched off, or replaced as the base. What that layer and those after it say stays, to be refused."""
    method = values.get("method")
    if not isinstance(method, Mapping):
        return values
    said = [layer["method"] if isinstance(layer.get("method"), Mapping) else {} for layer in layers]
    base = method.get("base", MethodConfig.model_fields["base"].default)
    left = dict(method)
    for kind in (*bases(), *switches()):
        key, is_base = key_of(kind), kind.place == "base"
        if not isinstance(left.get(key), Mapping) or (kind.name == base if is_base else _is_on_in(left[key])):
            continue
        sections = [of[key] if isinstance(of.get(key), Mapping) else {} for of in said]
        chosen = [n for n, of in enumerate(said) if ("base" in of if is_base else "enabled" in sections[n])]
        left[key] = {name: value for section in sections[max(chosen, default=0) :] for name, value in section.items()}
    return {**values, "method": left}


def method_switches(name: str) -> dict[str, Any]:
    """Return the section's values for the named method: its base with its variant, and what is switched on beside it;
    the radii and the rest keep their own settings. Raises ValueError."""
    method = named_method(name)
    on = {
        key_of(kind): {"enabled": method.has(kind.name)} if has_settings(kind) else method.has(kind.name)
        for kind in switches()
    }
    base, keys = method.base, _variant_keys(type(method.base))
    variant = {key: getattr(base, key) for key in keys}
    if method.base_is_ours:
        return {"base": base.name, **({key_of(type(base)): variant} if variant else {}), **on}
    return {"base": method.base_path, **({"settings": variant} if variant else {}), **on}


# ----------------------------------------------------------------------------------------------------- what is not read


def unused_settings(config: MethodConfig) -> list[str]:
    """Return a line for every stabilizer whose settings were changed though it is neither the base nor switched on, and
    for every changed setting that the base's variant does not read."""
    lines = []
    for kind in (*bases(), *switches()):
        changed = _changed_settings(config, kind)
        key = key_of(kind)
        if kind.place != "base" and changed and not getattr(config, key).enabled:
            lines.append(
                f"method.{key} has settings ({', '.join(changed)}), and it is off: set method.{key}.enabled to true"
            )
        elif kind.place == "base" and changed and kind.name != config.base:
            lines.append(
                f"method.{key} has settings, which base {config.base} does not read: set method.base to {kind.name}"
            )
        elif kind.name == config.base and (unread := [name for name in changed if name in _base(config).unread]):
            lines.append(f"method.{key}.{unread[0]} is not read with the other settings of method.{key}: leave it out")
    return lines


def _changed_settings(config: MethodConfig, kind: type[Stabilizer]) -> list[str]:
    """Return the names of the settings of its section that are not at their defaults. The paper's file may name the
    paper's scope for whoever switches SAT on."""
    if not has_settings(kind):
        return []
    section, default = getattr(config, key_of(kind)), MethodConfig.model_fields[key_of(kind)].default
    own = {"enabled", "scope"} if kind is SAT and section.scope == "microbatch" else {"enabled"}
    return [
        name
        for name in type(section).model_fields
        if name not in own and getattr(section, name) != getattr(default, name)
    ]


# ------------------------------------------------------------------------------------------------------ of plain values


def method_in(values: Mapping[str, Any]) -> Method:
    """Return the method of a `method` section as plain values, as a run folder has them, unchecked: base,
    variant and switches, all else at its default. A base that is unknown, or cannot be imported here, lends its name
    alone."""
    on = [kind() for kind in switches() if _is_on_in(values.get(key_of(kind)))]
    base = str(values.get("base", "?"))
    try:
        kind = find(base)
    except ValueError:
        kind = None
    if kind is None or kind.place != "base":
        return compose(named_method("grpo").base, on).called_by(base)
    section = values.get(key_of(kind) if "." not in base else "settings") or {}
    return compose(kind(**{key: section[key] for key in _variant_keys(kind) if key in section}), on)


def _is_on_in(value: Any) -> bool:
    return bool(value.get("enabled") if isinstance(value, Mapping) else value)


def method_label(values: Mapping[str, Any]) -> str:
    """Return a method as the paper writes it, such as `SAT-GSPO w/ R3`, from the `method` section as plain values."""
    return method_in(values).label
