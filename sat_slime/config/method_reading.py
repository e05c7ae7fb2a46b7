"""The `method` section and the objective's Method: names and switches in, data out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sat_slime.config.method_section import (
    MethodConfig,
    expand_switches,
    has_settings,
    key_of,
    outside_settings,
    settings_of,
)
from sat_slime.config.source import ConfigError, Source
from sat_slime.objective import Clip, Method, Stabilizer, compose, named_method
from sat_slime.objective.stabilizers import bases, find, switches


def expand_shorthands(source: Source) -> dict[str, Any]:
    """The values of `source` with `method: sat-gspo-r3` and `method.sat: true` written out, so that files merge key
    by key whichever way they say it."""
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
    """`values` as `over` is laid upon it: without method.settings, where they are of a base that is not ours and `over`
    names another one, which could not read them."""
    method, new = values.get("method"), over.get("method")
    if not (isinstance(method, Mapping) and isinstance(new, Mapping) and "." in str(method.get("base"))):
        return values
    if new.get("base", method["base"]) == method["base"]:
        return values
    return {**values, "method": {key: value for key, value in method.items() if key != "settings"}}


def method_switches(name: str) -> dict[str, Any]:
    """The section's values for the named method: its base with its variant, and what is switched on beside it; the
    radii and the rest keep their own settings. Raises ValueError."""
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


def _variant_keys(kind: type[Stabilizer]) -> list[str]:
    return list(dict.fromkeys(key for variant in kind.variants for key in variant.settings))


def build_method(config: MethodConfig) -> Method:
    """The objective that `config` describes. Whether it means something is objective.check_method's."""
    return compose(
        _base(config),
        [_beside(kind, getattr(config, key_of(kind))) for kind in switches() if _is_on(getattr(config, key_of(kind)))],
        denominator=config.denominator,
        trust_region=Clip(**config.clip.model_dump()),
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


def unused_settings(config: MethodConfig) -> list[str]:
    """A line for every stabilizer whose settings were changed though it is neither the base nor switched on, and for
    every changed setting that the base's variant does not read."""
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
    """Names of the settings of its section that are not at their defaults."""
    if not has_settings(kind):
        return []
    section, default = getattr(config, key_of(kind)), MethodConfig.model_fields[key_of(kind)].default
    return [
        name
        for name in type(section).model_fields
        if name != "enabled" and getattr(section, name) != getattr(default, name)
    ]


def method_in(values: Mapping[str, Any]) -> Method:
    """The method of a `method` section as plain values, of a run folder perhaps of an older version: base, variant and
    switches, all else at its default. A base that is unknown, or cannot be imported here, lends its name alone."""
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
    """A method as the paper writes it, such as `SAT-GSPO w/ R3`, from the `method` section as plain values."""
    return method_in(values).label
