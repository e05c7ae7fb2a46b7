"""The section `method` of a run, and the Method that it describes. A stabilizer's settings are the stabilizer: a field
holds the dataclass of sat_slime.objective, or None where it is off."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationInfo,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)

from sat_slime import outside
from sat_slime.config.section import OWN_TO_A_CELL, Section, refused, settings_of
from sat_slime.config.source import merged
from sat_slime.objective import SAT, Clip, Method, Stabilizer, compose, named_method
from sat_slime.objective.clips import GRPO
from sat_slime.objective.method import bases, find, switches
from sat_slime.objective.terms import Denominator


def key_of(kind: type[Stabilizer]) -> str:
    """Return its key in the section `method`."""
    return kind.key or kind.prefix()


def _key(base: str) -> str:
    """Return the key of the settings of a base, by its name or dotted path."""
    return "settings" if "." in base else base.replace("-", "_")


SETTINGS = {key_of(kind): kind for kind in (*switches(), *bases()) if dataclasses.fields(kind)}  # type: ignore[arg-type]
"""Keys of the section below which stabilizers have settings."""
SWITCHES = {key for key, kind in SETTINGS.items() if kind.place != "base"}
"""Those of them that true and false stand for."""
OF_BASES = {*SETTINGS, "settings"} - SWITCHES
"""Those of bases."""
BESIDE = {key_of(kind): kind.__doc__ or "" for kind in switches()}
"""Keys of what stands beside a base, and what it is."""


def _base(name: str) -> str:
    """Return the name of a base: one of ours, or the dotted path of another whose module can be imported."""
    if "." in name:
        if not outside.are_refused():
            find(name)  # raises where it cannot be imported
        return name
    kind = find(name)
    if kind is None:
        names = [kind.name for kind in bases()]
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        known = f"did you mean '{near[0]}'?" if near else f"it must be one of {', '.join(names)}"
        raise ValueError(f"there is no base '{name}'; {known}")
    if kind.place != "base":
        raise ValueError(f"{name} stands beside a base: set method.{key_of(kind)} to true, and method.base to a base")
    return name


class MethodConfig(Section):
    """The method that is optimized: a base, and what stands beside it. `method: sat-gspo-r3` is short for a base and
    all that is on beside it; `sat-slime methods` lists the names, `sat-slime methods NAME` the settings of each with
    their defaults. `sat: true` switches on with those, `sat: {alpha: 0.8}` with others, `sat: false` off."""

    base: Annotated[str, AfterValidator(_base), OWN_TO_A_CELL] = "gspo"
    """The base recipe: token ratio (grpo, ppo), sequence ratio (gspo), or another stabilizer of the design space; or
    the dotted path of a module with one of your own (docs/extend.md). Settings that it has stand below its own name,
    as `dppo: {delta: 1e-3}`."""
    denominator: Annotated[Denominator | None, OWN_TO_A_CELL] = None
    """Denominator of the ratio: `rollout` (mu, the engine), `checkpoint` (the trainer under the generating weights),
    `trainer` (the trainer as the batch begins). Unset: what the method needs (a3po for A-3PO; checkpoint for SAT
    with a weight pi / mu, such as that of TIS, trainer for such a weight alone; else rollout)."""
    clip: Clip = Clip()
    """Base radii."""

    sat: SAT | None = None
    r3: Annotated[bool, OWN_TO_A_CELL] = False
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of a base that is not ours, by their names."""

    @model_validator(mode="before")
    @classmethod
    def _on_and_off(cls, values: Any) -> Any:
        """`sat: true` is on with its defaults, `sat: false` is off; the base's settings are always there."""
        values = method_switches(values) if isinstance(values, str) else values
        if not isinstance(values, Mapping):
            return values
        empty = "it is empty: write settings below it, true or false, or leave it out"
        faults: dict[tuple[str, ...], str] = {(key,): empty for key in SWITCHES if values.get(key, key) is None}
        for key, kind in {**SETTINGS, "clip": Clip}.items():
            faults |= {(key, name): text for name, text in _yes_or_no(kind, values.get(key)).items()}
        refused(faults)
        off = {key for key in SWITCHES if values.get(key) is False}
        base = _key(str(values.get("base", cls.model_fields["base"].default)))
        own: dict[str, Any] = {base: {}} if base in OF_BASES else {}
        return own | {key: value for key, value in _written_out(values).items() if key not in off}

    @field_validator("settings")
    @classmethod
    def _of_another(cls, settings: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Return the settings of a base that is not ours, those that are left out at their defaults."""
        base = info.data.get("base", "")  # empty: it is at fault itself
        if "." not in base or outside.are_refused():
            if settings and base and "." not in base:
                own = f", or write those of {base} below method.{_key(base)}" if _key(base) in SETTINGS else ""
                raise ValueError(f"method.settings is for a base that is not ours: leave it out{own}")
            return settings
        kind = find(base)
        assert kind is not None, "it has been looked for"
        refused({(name,): text for name, text in _yes_or_no(kind, settings).items()})
        return dataclasses.asdict(TypeAdapter(kind).validate_python(settings))  # type: ignore[call-overload]

    @model_serializer(mode="wrap")
    def _what_is_on(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None and value != {}}


if not TYPE_CHECKING:
    # With the settings of each stabilizer by its key, None where it is off; of one without settings true or false.
    _stabilizers = {
        key: (SETTINGS[key] | None, None) if key in SETTINGS else (Annotated[bool, OWN_TO_A_CELL], False)
        for key in {**BESIDE, **SETTINGS}
    }
    MethodConfig = create_model("MethodConfig", __base__=MethodConfig, __doc__=MethodConfig.__doc__, **_stabilizers)


def section_name(method: Method, stabilizer: Stabilizer) -> str:
    """Return the key in the section `method` below which the settings of one of its stabilizers are."""
    return "settings" if stabilizer is method.base and not method.base_is_ours else key_of(type(stabilizer))


def _yes_or_no(kind: type, values: Any) -> dict[str, str]:
    """Return a fault for each true and false given for a number, which pydantic would read as 1 and 0."""
    given = values if isinstance(values, Mapping) else {}
    of_numbers = (name for name, field in settings_of(kind).items() if not isinstance(field.default, bool))
    wrong = [name for name in of_numbers if isinstance(given.get(name), bool)]
    return {name: f"it is {str(given[name]).lower()}, and no yes-or-no setting" for name in wrong}


def build_method(config: MethodConfig) -> Method:
    """Return the objective that `config` describes. Whether it means something is objective.check_method's."""
    kind, values = find(config.base), [(kind, getattr(config, key_of(kind))) for kind in switches()]
    assert kind is not None, "the section has been checked"
    own = "." in config.base  # whose name may be that of a section
    base = (None if own else getattr(config, key_of(kind), None)) or TypeAdapter(kind).validate_python(config.settings)
    beside = [kind() if value is True else value for kind, value in values if value]
    return compose(base, beside, denominator=config.denominator, clip=config.clip)


def unused_settings(config: MethodConfig) -> list[str]:
    """Return a line for the settings of every base that is not the method's, and for every changed setting that the
    base does not read beside its others."""
    key, base = _key(config.base), build_method(config).base
    lines = [
        f"method.{key_of(kind)} has settings, which base {config.base} does not read: set method.base to {kind.name}"
        for kind in bases()
        if kind.name != config.base and getattr(config, key_of(kind), None) is not None
    ]
    unread = [name for name in base.unread if getattr(base, name) != getattr(type(base)(), name)]
    return lines + [
        f"method.{key}.{name} is not read with the other settings of method.{key}: leave it out" for name in unread
    ]


def method_switches(name: str) -> dict[str, Any]:
    """Return the section's values for a named method: its base, and what is on and off beside it. Raises ValueError."""
    method = named_method(name)
    return {"base": method.base_path, **{key_of(kind): method.has(kind.name) for kind in switches()}}


def laid_over(below: Mapping[str, Any], method: Any) -> Any:
    """Return the values of one file's section over those of the files below. Raises ValueError for an unknown name.
    A name stands for its switches. What is switched off loses its settings, what is switched on keeps them; those of a
    base go where another is named."""
    above = method_switches(method) if isinstance(method, str) else method
    if not isinstance(above, Mapping):
        return above
    if "base" in above:
        old, new = str(below.get("base", "")), str(above["base"])
        kept = {_key(new)} if old == new or "." not in old else {_key(new)} - {"settings"}
        below = {key: value for key, value in below.items() if key not in OF_BASES - kept}
    return merged(below, _written_out(above))


def _written_out(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: {} if key in SWITCHES and value is True else value for key, value in values.items()}


def method_in(values: Mapping[str, Any]) -> Method:
    """Return the method of a `method` section as plain values, as a run folder has them, unchecked: base and
    switches, all else at its default. A base that is unknown, or cannot be imported here, lends its name alone."""
    sections = {kind: values.get(key_of(kind)) for kind in switches()}  # an older run's say `enabled`
    on = [
        kind()
        for kind, value in sections.items()
        if (value.get("enabled", True) if isinstance(value, Mapping) else value) not in (None, False)
    ]
    base = str(values.get("base", "?"))
    try:
        kind = find(base)
    except ValueError:
        kind = None
    if kind is None or kind.place != "base":
        kind = type(base, (GRPO,), {"name": base, "__module__": base, "__doc__": f"{base.upper()}:"})
    return compose(kind(), on)


def method_label(values: Mapping[str, Any]) -> str:
    """Return a method as the paper writes it, `SAT-GSPO w/ R3`, and its denominator where the name has another."""
    method = method_in(values)
    over = values.get("denominator") or method.denominator
    return method.label if over == method.denominator else f"{method.label}, denominator {over}"
