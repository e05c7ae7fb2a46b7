"""From YAML and the command line to a checked run, and back to one resolved file."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sat_slime.config.grid_schema import GridConfig
from sat_slime.config.method import expand_shorthands
from sat_slime.config.schema import EmbeddedConfig, Section
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.config.source import ConfigError, KeyPath, Source, parse_value, read_layers

SectionT = TypeVar("SectionT", bound=Section)

RunConfig = EmbeddedConfig | SlimeConfig
RUNTIMES: dict[str, type[RunConfig]] = {"embedded": EmbeddedConfig, "slime": SlimeConfig}
"""The class behind each value of `runtime:`."""
RETIRED: dict[KeyPath, str] = {
    ("rollout", "base_port"): "the servers of a run have no ports any more, but files that this user alone can open"
}
"""Settings that are gone, and why. Older runs have them in their files as null."""


def load_config(
    path: str | Path, overrides: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> RunConfig:
    """Read a run from a YAML file.

    overrides: `a.b=value` texts of `--set`, the value in YAML. settings: dotted key to value, laid on before them.
    Raises ConfigError with one line for every fault found. What needs several sections is config_errors, for a slime
    run slime_config_errors.
    """
    sources = _layers(path)
    sources += [_setting(key, value) for key, value in (settings or {}).items()]
    sources += [_override(text) for text in overrides]
    return _validate(_laid({}, str(path), sources))


def vary(
    config: RunConfig, layers: Sequence[tuple[str, Mapping[str, Any]]], overrides: Sequence[str] = ()
) -> RunConfig:
    """`config` with layers of settings over it, each with the place that is said where a fault is found. Their keys may
    be sections or dotted. overrides: as of load_config, laid on last. Raises ConfigError."""
    sources = [_setting(key, value, place) for place, settings in layers for key, value in settings.items()]
    sources += [_override(text) for text in overrides]
    return _validate(_laid(config.model_dump(mode="json"), config.name, sources))


def _laid(values: dict[str, Any], place: str, sources: Sequence[Source]) -> Source:
    merged = Source(values, {(): place})
    for source in sources:
        source.values = expand_shorthands(source)
        merged.update(source)
    return merged


def load_grid(path: str | Path, settings: Mapping[str, Any] | None = None) -> GridConfig:
    """Read a grid from a YAML file. settings: dotted key to value, laid over it. Raises ConfigError."""
    merged = Source({}, {(): str(path)})
    for layer in [*_layers(path), *(_setting(key, value) for key, value in (settings or {}).items())]:
        merged.update(layer)
    return _validate_as(GridConfig, merged)


def _layers(path: str | Path) -> list[Source]:
    try:
        return read_layers(path)
    except FileNotFoundError as error:
        raise ConfigError([str(error)]) from None


def read_section(model: type[SectionT], values: Any, place: str) -> SectionT:
    """A section from plain values, as in a file. `place` is said where a fault is found. Raises ConfigError."""
    if not isinstance(values, Mapping):
        raise ConfigError([f"{place}: it is a section with the keys {', '.join(model.model_fields)}"])
    source = Source(dict(values), {(): place})
    source.values = expand_shorthands(source)
    return _validate_as(model, source)


def dump_config(config: Section) -> str:
    """The run as YAML with every field written out; load_config of it gives an equal config."""
    values = config.model_dump(mode="json")
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def key_paths(model: type[Section]) -> Iterator[KeyPath]:
    """Every setting of `model` that holds a value, sections left out."""
    for name, inner in model.model_fields.items():
        section = _section(inner.annotation)
        if section is None:
            yield (name,)
        else:
            yield from ((name, *rest) for rest in key_paths(section))


def _override(text: str) -> Source:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError([f"--set {text}: expected key=value, such as --set pipeline.lag=8"])
    try:
        return _setting(key.strip(), parse_value(value), f"--set {text}")
    except yaml.YAMLError:
        raise ConfigError([f"--set {text}: the value {value!r} is not valid YAML; quote it"]) from None


def _setting(key: str, value: Any, origin: str = "command line") -> Source:
    path = tuple(key.split("."))
    values: Any = value
    for name in reversed(path):
        values = {name: values}
    return Source(values, {path[: depth + 1]: origin for depth in range(len(path))})


def _validate(source: Source) -> RunConfig:
    runtime = source.values.get("runtime", "embedded")
    model = RUNTIMES.get(runtime) if isinstance(runtime, str) else None
    if model is None:
        raise ConfigError([_bad_choice(source, ("runtime",), runtime, list(RUNTIMES))])
    return _validate_as(model, source)


def _validate_as(model: type[SectionT], source: Source) -> SectionT:
    errors: list[str] = []
    values = _known(model, source.values, (), source, list(key_paths(model)), errors)
    try:
        config = model.model_validate(values)
    except ValidationError as error:
        errors += [_translate(model, source, detail) for detail in error.errors()]
    if errors:
        raise ConfigError(errors)
    return config


def _known(
    model: type[Section],
    values: Mapping[str, Any],
    path: KeyPath,
    source: Source,
    known: list[KeyPath],
    errors: list[str],
) -> dict[str, Any]:
    """`values` without its unknown keys, which become `errors`; an empty section stands for its defaults."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        inner = (*path, key)
        field = model.model_fields.get(key)
        if inner in RETIRED:
            if value is not None:
                told = f"{source.origin(inner)}: {'.'.join(inner)} is no setting any more: {RETIRED[inner]}"
                errors.append(f"{told}; leave it out, or set it to null")
            continue
        if field is None:
            errors += [_unknown_key(source, leaf, known) for leaf in _leaves(inner, value)]
            continue
        section = _section(field.annotation)
        if section is not None and (value is None or isinstance(value, Mapping)):
            result[key] = _known(section, value or {}, inner, source, known, errors)
        elif isinstance(value, bool) and section is None and field.annotation is not bool:
            # pydantic reads true as 1: `lag: yes` must not become a lag of 1
            errors.append(
                f"{source.origin(inner)}: {'.'.join(inner)} is {_shown(value)}: it is not a yes-or-no setting"
            )
        else:
            result[key] = value
    return result


def _leaves(path: KeyPath, value: Any) -> list[KeyPath]:
    if not isinstance(value, Mapping) or not value:
        return [path]
    return [leaf for key, inner in value.items() for leaf in _leaves((*path, key), inner)]


def _unknown_key(source: Source, path: KeyPath, known: list[KeyPath]) -> str:
    def similarity(candidate: KeyPath) -> float:
        # a key under the wrong section, or under none, is as close as its own name is
        whole = difflib.SequenceMatcher(None, ".".join(path), ".".join(candidate)).ratio()
        name = difflib.SequenceMatcher(None, path[-1], candidate[-1]).ratio()
        return max(whole, 0.95 * name) + 0.01 * whole

    nearest = max(known, key=similarity)
    hint = f"; did you mean '{'.'.join(nearest)}'?" if similarity(nearest) > 0.7 else ""
    return f"{source.origin(path)}: unknown key '{'.'.join(path)}'{hint}"


def _translate(model: type[Section], source: Source, detail: ErrorDetails) -> str:
    path = tuple(str(part) for part in detail["loc"])
    key, kind, context = ".".join(path), detail["type"], detail.get("ctx", {})
    if kind == "literal_error":
        return _bad_choice(source, path, detail["input"], _choices(model, path))
    if kind == "value_error":  # a section's own check, which names its keys itself
        return f"{source.origin(path)}: {key}: {context['error']}"
    if kind == "model_type":
        reason = f"it is a section with the keys {', '.join(_section_at(model, path).model_fields)}"
    elif kind == "string_pattern_mismatch":
        reason = "it takes letters, digits, '.', '_' and '-', and begins with a letter or a digit"
    elif kind == "string_type":
        reason = "it must be text; put it in quotes"
    else:
        reason = detail["msg"].replace("Input should be", "it must be")
    return f"{source.origin(path)}: {key} is {_shown(detail['input'])}: {reason}"


def _bad_choice(source: Source, path: KeyPath, value: Any, choices: list[str]) -> str:
    close = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    known = ", ".join(choices)
    return f"{source.origin(path)}: {'.'.join(path)} is {_shown(value)}: it must be one of {known}{hint}"


def _shown(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)


def _section(annotation: Any) -> type[Section] | None:
    is_section = isinstance(annotation, type) and issubclass(annotation, Section)
    return annotation if is_section else None


def _section_at(model: type[Section], path: KeyPath) -> type[Section]:
    for name in path:
        model = _section(model.model_fields[name].annotation) or model
    return model


def _choices(model: type[Section], path: KeyPath) -> list[str]:
    """The values that a Literal field takes."""
    annotation = _section_at(model, path[:-1]).model_fields[path[-1]].annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        annotation = next(arg for arg in typing.get_args(annotation) if arg is not type(None))
    return [str(choice) for choice in typing.get_args(annotation)]
