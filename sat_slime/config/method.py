"""The `method` section and the objective's Method: names and switches in, data out."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from sat_slime.config.schema import MethodConfig, Section
from sat_slime.config.source import ConfigError, Source
from sat_slime.objective import DPPO, SAT, TIS, Clip, IcePop, Method, compose_method, named_method

SWITCHES = ("sat", "tis")
"""Sections of `method` that `true` and `false` stand for."""
FORMS = {("dppo", "divergence"): ("tv", "kl"), ("icepop", "form"): ("mask", "weight")}
"""Settings that make one base another, by name `dppo-kl` and `icepop-weight`: the plain value, and that of the name."""


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
        values["method"] = {
            key: {"enabled": value} if key in SWITCHES and isinstance(value, bool) else value
            for key, value in method.items()
        }
    return values


def method_switches(name: str) -> dict[str, Any]:
    """base, its form, sat, tis, r3 and top_p_replay of a named method; the radii and the rest keep their own settings.
    Raises ValueError."""
    method = named_method(name)
    base = method.name.removeprefix("sat-")
    for suffix in ("-topp", "-r3", "-tis"):
        base = base.removesuffix(suffix)
    base, _, form = base.partition("-")
    return {
        "base": base,
        **{section: {key: form or plain} for (section, key), (plain, _) in FORMS.items() if section == base},
        "sat": {"enabled": isinstance(method.trust_region, SAT)},
        "tis": {"enabled": method.tis is not None},
        "r3": method.routing_replay,
        "top_p_replay": method.top_p_replay,
    }


def base_name(values: Mapping[str, Any]) -> str:
    """The base with its form, such as `dppo-kl`, from the `method` section as plain values."""
    base = str(values.get("base", "?"))
    for (section, key), (_, form) in FORMS.items():
        if section == base and (values.get(section) or {}).get(key) == form:
            return f"{base}-{form}"
    return base


def build_method(config: MethodConfig) -> Method:
    """The objective that `config` describes. Whether it means something is objective.check_method's."""
    method = compose_method(
        base_name(config.model_dump()),
        sat=config.sat.enabled,
        tis=config.tis.enabled,
        r3=config.r3,
        topp=config.top_p_replay,
        denominator=config.denominator,
    )
    radii = config.clip.model_dump()
    trust_region = method.trust_region
    if isinstance(trust_region, SAT):
        trust_region = SAT(**radii, **config.sat.model_dump(exclude={"enabled"}))
    elif isinstance(trust_region, Clip):
        trust_region = Clip(**radii)
    return dataclasses.replace(
        method,
        trust_region=trust_region,
        gates=tuple(_configured(gate, config) for gate in method.gates),
        penalty=method.penalty and _configured(method.penalty, config),
        step_constraint=method.step_constraint and _configured(method.step_constraint, config),
        tis=TIS(cap=config.tis.cap) if method.tis else None,
    )


def _configured(component: Any, config: MethodConfig) -> Any:
    """The component with the settings of its section, which has its name."""
    if isinstance(component, DPPO):
        divergence = config.dppo.divergence
        return DPPO(config.dppo.delta if divergence == "tv" else config.dppo.delta_kl, divergence)
    section: Section = getattr(config, "icepop" if isinstance(component, IcePop) else component.name)
    return type(component)(**section.model_dump())


def unused_settings(config: MethodConfig) -> list[str]:
    """A line for every base whose settings were changed though it is not the base."""
    fields = MethodConfig.model_fields
    sections = [name for name in typing.get_args(fields["base"].annotation) if name in fields and name != config.base]
    return [
        f"method.{name} has settings, which base {config.base} does not read: set method.base to {name}"
        for name in sections
        if getattr(config, name) != fields[name].default
    ]


def method_label(values: Mapping[str, Any]) -> str:
    """A method as the paper writes it, such as `SAT-GSPO w/ R3`, from the `method` section as plain values."""
    switched_on = {key: bool((values.get(key) or {}).get("enabled")) for key in SWITCHES}
    name = ("SAT-" if switched_on["sat"] else "") + base_name(values).upper()
    labels = (("TIS", switched_on["tis"]), ("R3", values.get("r3")), ("top-p", values.get("top_p_replay")))
    extras = [label for label, on in labels if on]
    return f"{name} w/ {' + '.join(extras)}" if extras else name
