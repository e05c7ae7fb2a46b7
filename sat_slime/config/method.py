"""The `method` section and the objective's Method: names and switches in, data out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sat_slime.config.schema import MethodConfig
from sat_slime.config.source import ConfigError, Source
from sat_slime.objective import DPPO, SAT, TIS, Clip, Method, compose_method, named_method

SWITCHES = ("sat", "tis")
"""Sections of `method` that `true` and `false` stand for."""


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
    """base, sat, tis and r3 of a named method; the radii and the rest keep their own settings. Raises ValueError."""
    method = named_method(name)
    base = method.name.removeprefix("sat-").removesuffix("-r3").removesuffix("-tis")
    sat, tis = isinstance(method.trust_region, SAT), method.tis is not None
    return {"base": base, "sat": {"enabled": sat}, "tis": {"enabled": tis}, "r3": method.routing_replay}


def build_method(config: MethodConfig) -> Method:
    """The objective that `config` describes. Whether it means something is objective.check_method's."""
    method = compose_method(
        config.base,
        sat=config.sat.enabled,
        tis=config.tis.enabled,
        r3=config.r3,
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
        gates=tuple(DPPO(**config.dppo.model_dump()) if isinstance(gate, DPPO) else gate for gate in method.gates),
        tis=TIS(cap=config.tis.cap) if method.tis else None,
    )


def method_label(values: Mapping[str, Any]) -> str:
    """A method as the paper writes it, such as `SAT-GSPO w/ R3`, from the `method` section as plain values."""
    switched_on = {key: bool((values.get(key) or {}).get("enabled")) for key in SWITCHES}
    name = ("SAT-" if switched_on["sat"] else "") + str(values.get("base", "?")).upper()
    extras = [label for label, on in (("TIS", switched_on["tis"]), ("R3", values.get("r3"))) if on]
    return f"{name} w/ {' + '.join(extras)}" if extras else name
