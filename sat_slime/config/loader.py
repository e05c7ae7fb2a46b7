"""From YAML and the command line to a checked run, and back to one resolved file."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sat_slime.config.grid_schema import GridConfig
from sat_slime.config.method_section import expand_shorthands, without_settings_of_another, without_what_is_off
from sat_slime.config.schema import LabConfig, Section, without_settings_of_another_task
from sat_slime.config.section import Mark, marked, section_class
from sat_slime.config.slime_schema import READ, SlimeConfig
from sat_slime.config.source import ConfigError, KeyPath, Source, parse_value, read_layers
from sat_slime.config.synonyms import SYNONYMS

SectionT = TypeVar("SectionT", bound=Section)

RunConfig = LabConfig | SlimeConfig
RUNTIMES: dict[str, type[RunConfig]] = {"lab": LabConfig, "slime": SlimeConfig}
"""The class behind each value of `runtime:`."""
SHOWN_CHARACTERS = 80
"""Characters of a faulty value that a message shows."""
MOST_CHOICES = 12
"""A message lists no more values than these where it knows which was meant, and no more keys of a section."""
_OF_A_RUN = {key for model in RUNTIMES.values() for key in model.model_fields} - set(GridConfig.model_fields)
_OF_A_GRID = set(GridConfig.model_fields) - {key for model in RUNTIMES.values() for key in model.model_fields}


def marked_settings(mark: Mark) -> frozenset[str]:
    """Return the dotted keys of the settings and sections that bear `mark` in a run of any runtime."""
    return frozenset(key for model in RUNTIMES.values() for key in marked(model, mark))


def load_config(
    path: str | Path, overrides: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> RunConfig:
    """Read a run from a YAML file.

    overrides: `a.b=value` texts of `--set`, the value in YAML. settings: dotted key to value, laid on before them.
    Raises ConfigError with one line for every fault found. What needs several sections is config_errors, for a slime
    run slime_config_errors; where this raises, further_errors.
    """
    sources = _layers(path)
    if _only(sources, _OF_A_GRID, _OF_A_RUN):
        raise ConfigError([f"{path}: this is a grid, not a run: sat-slime grid {path}, with --dry-run to check it"])
    sources += [_setting(key, value) for key, value in (settings or {}).items()]
    return _laid({}, str(path), sources, overrides)


def further_errors(error: ConfigError, check: Callable[[RunConfig], Sequence[str]]) -> list[str]:
    """Return what `check` finds in the settings besides the faults of `error`, as a line each.

    It is given the faulty settings at their defaults: lines that name one of those, or their section as a whole, are
    left out.
    """
    if error.rest is None:
        return []
    named = [rf"\b{re.escape('.'.join(path))}\b|^{re.escape(path[0])}:" for path in error.faulty]
    return [line for line in check(error.rest) if not any(re.search(pattern, line) for pattern in named)]


def vary(
    config: RunConfig, layers: Sequence[tuple[str, Mapping[str, Any]]], overrides: Sequence[str] = ()
) -> RunConfig:
    """Return `config` with layers of settings over it, each with the place that is said where a fault is found. Their
    keys may be sections or dotted. overrides: as of load_config, laid on last. Raises ConfigError."""
    sources = [_setting(key, value, place) for place, settings in layers for key, value in settings.items()]
    return _laid(config.model_dump(mode="json"), config.name, sources, overrides)


def _laid(values: dict[str, Any], place: str, sources: Sequence[Source], overrides: Sequence[str]) -> RunConfig:
    """Return `values` with the sources over them, and then the overrides. Raises ConfigError with all that is wrong."""
    merged = Source(values, {(): place})
    errors: list[str] = []
    faulty: list[KeyPath] = []
    for text in sorted(overrides, key=lambda text: not text.startswith("task.name=")):  # whose settings the others are
        try:
            sources = [*sources, _override(text)]
        except ConfigError as error:
            errors += error.errors
    for source in sources:
        try:
            source.values = expand_shorthands(source)
        except ConfigError as error:
            errors += error.errors
            faulty.append(("method",))
            source.values = {key: value for key, value in source.values.items() if key != "method"}
        merged.values = without_settings_of_another(merged.values, source.values)
        merged.values = without_settings_of_another_task(merged.values, source.values)
        merged.update(source)
    merged.values = without_what_is_off(merged.values, [values, *(source.values for source in sources)])
    return _validate(merged, errors, faulty)


def load_grid(path: str | Path, settings: Mapping[str, Any] | None = None) -> GridConfig:
    """Read a grid from a YAML file. settings: dotted key to value, laid over it. Raises ConfigError."""
    layers = _layers(path)
    if _only(layers, _OF_A_RUN, _OF_A_GRID):
        raise ConfigError([f"{path}: this is a run, not a grid: sat-slime launch {path}"])
    merged = Source({}, {(): str(path)})
    for layer in [*layers, *(_setting(key, value) for key, value in (settings or {}).items())]:
        merged.update(layer)
    return _validate_as(GridConfig, merged)


def _layers(path: str | Path) -> list[Source]:
    try:
        return read_layers(path)
    except FileNotFoundError as error:
        raise ConfigError([f"{error}{_of_a_hub(path)}"]) from None


def _of_a_hub(path: str | Path) -> str:
    """Return what to do where a model was named instead of a file."""
    if not re.fullmatch(r"[\w-]+/(?=.*[A-Z0-9])[\w.-]+", str(path)) or Path(path).suffix in (".yaml", ".yml"):
        return ""
    return (
        ": for a model, `sat-slime init slime`, and set slime.hf-checkpoint in slime.yaml to the folder of its weights"
    )


def _only(layers: Sequence[Source], some: set[str], none: set[str]) -> bool:
    """Return whether the files have keys out of `some`, and none out of `none`."""
    keys = {key for layer in layers for key in layer.values}
    return bool(keys & some) and not keys & none


def read_section(model: type[SectionT], values: Any, place: str) -> SectionT:
    """Return a section from plain values, as in a file. `place` is said where a fault is found. Raises ConfigError."""
    if not isinstance(values, Mapping):
        raise ConfigError([f"{place}: it is a section with the keys {', '.join(model.model_fields)}"])
    source = Source(dict(values), {(): place})
    source.values = expand_shorthands(source)
    return _validate_as(model, source)


def dump_config(config: Section) -> str:
    """Return the run as YAML with every field written out; load_config of it gives an equal config."""
    values = config.model_dump(mode="json")
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def key_paths(model: type[BaseModel], values: Mapping[str, Any] | None = None) -> Iterator[KeyPath]:
    """Yield every setting of `model` that holds a value, sections left out. values: of a run, whose task they may
    name."""
    for name, inner in model.model_fields.items():
        section = section_class(inner, (values or {}).get(name))
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
    except ConfigError:
        raise ConfigError([f"--set {text}: the value {value!r} is not valid YAML; quote it"]) from None


def _setting(key: str, value: Any, origin: str = "command line") -> Source:
    path = tuple(key.split("."))
    values: Any = value
    for name in reversed(path):
        values = {name: values}
    return Source(values, {path[: depth + 1]: origin for depth in range(len(path))})


def _validate(source: Source, errors: list[str], faulty: list[KeyPath]) -> RunConfig:
    runtime = source.values.get("runtime", "lab")
    model = RUNTIMES.get(runtime) if isinstance(runtime, str) else None
    if model is None:
        raise ConfigError([*errors, _bad_choice(source, ("runtime",), runtime, list(RUNTIMES))])
    return _validate_as(model, source, errors, faulty)


def _validate_as(
    model: type[SectionT], source: Source, errors: Sequence[str] = (), faulty: Sequence[KeyPath] = ()
) -> SectionT:
    """errors, faulty: what was found before, and in which settings."""
    errors, faulty = list(errors), list(faulty)
    values = _known(model, source.values, (), source, list(key_paths(model, source.values)), errors, faulty)
    try:
        config = model.model_validate(values)
    except ValidationError as error:
        errors += [_translate(model, source, detail) for detail in error.errors()]
        faulty += [_setting_of(model, values, detail) for detail in error.errors()]
    if errors:
        raise ConfigError(errors, *_rest(model, values, faulty))
    return config


def _rest(
    model: type[SectionT], values: dict[str, Any], faulty: list[KeyPath]
) -> tuple[SectionT | None, list[KeyPath]]:
    """Return the settings with the faulty ones at their defaults, and which are faulty: those that do not go together
    with such a default too. None where that is not sound either."""
    for _ in range(2):
        sound = values
        for path in faulty:
            sound = _without(sound, path)
        try:
            return model.model_validate(sound), faulty
        except ValidationError as error:
            faulty = faulty + [_setting_of(model, values, detail) for detail in error.errors()]
    return None, faulty


def _without(values: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    """Return `values` without what is at `path`, or at the part of it that is there."""
    if not path:  # a fault of the section as a whole
        return {}
    key, inner = path[0], path[1:]
    if inner and isinstance(values.get(key), dict):
        return {**values, key: _without(values[key], inner)}
    return {name: value for name, value in values.items() if name != key}


def _known(
    model: type[BaseModel],
    values: Mapping[str, Any],
    path: KeyPath,
    source: Source,
    known: list[KeyPath],
    errors: list[str],
    faulty: list[KeyPath],
) -> dict[str, Any]:
    """Return `values` without what is no value of a setting of `model`: that becomes `errors`, and the settings that
    were meant `faulty`."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        inner = (*path, key)
        field = model.model_fields.get(key)
        if field is None:
            for leaf in _leaves(inner, value):
                meant = _meant(leaf, known)
                names = " and ".join(f"'{'.'.join(one)}'" for one in meant)
                hint = f"; did you mean {names}?" if meant else _siblings(leaf, path, model)
                if ("slime",) in known and (flag := _meant_flag(leaf, meant)):
                    hint, meant = f"; slime's flags stand under slime: did you mean slime.{flag}?", []
                elif ("runtime",) in known and (owner := _other_runtime_with(leaf, known)):
                    hint = f"; it is a setting of {owner} runs alone"
                faulty += meant
                errors.append(f"{source.origin(leaf)}: unknown key '{'.'.join(leaf)}'{hint}")
            continue
        section = section_class(field, value)
        if section is not None and isinstance(value, Mapping):
            result[key] = _known(section, value, inner, source, known, errors, faulty)
        elif section is not None and value is None:
            # laid over the files below, nothing would take back what they say
            faulty.append(inner)
            errors.append(
                f"{source.origin(inner)}: {'.'.join(inner)} is empty: write settings below it, or leave it out"
            )
        elif isinstance(value, bool) and section is None and field.annotation is not bool:
            # pydantic reads true as 1: `lag: yes` must not become a lag of 1
            faulty.append(inner)
            errors.append(
                f"{source.origin(inner)}: {'.'.join(inner)} is {_shown(value)}: it is not a yes-or-no setting"
            )
        else:
            result[key] = value
    return result


def _meant_flag(leaf: KeyPath, meant: Sequence[KeyPath]) -> str | None:
    """Return the flag of slime that an unknown key of a run is likely to mean, if that is likelier than `meant`."""
    word = leaf[-1].replace("_", "-")
    if any(path[-1] == leaf[-1] for path in meant):
        return None
    flags = list(READ.__annotations__)
    return word if word in flags else next(iter(difflib.get_close_matches(word, () if meant else flags, 1, 0.6)), None)


def _other_runtime_with(leaf: KeyPath, known: list[KeyPath]) -> str | None:
    """Return the runtime whose runs have this setting, if there is one, and it is not that of the `known` settings: a
    task may leave out settings that the default one of its runtime has."""
    for name, model in RUNTIMES.items():
        paths = key_paths(model)
        if leaf in paths and {path[0] for path in paths} != {path[0] for path in known}:
            return name
    return None


def _siblings(leaf: KeyPath, path: KeyPath, model: type[BaseModel]) -> str:
    """Return what the section has, of which an unknown key resembles nothing."""
    where = ".".join(path) or "a file"
    return f"; {where} has {', '.join(model.model_fields)}" if len(leaf) == len(path) + 1 else ""


def _leaves(path: KeyPath, value: Any) -> list[KeyPath]:
    if not isinstance(value, Mapping) or not value:
        return [path]
    return [leaf for key, inner in value.items() for leaf in _leaves((*path, key), inner)]


def _meant(path: KeyPath, known: list[KeyPath]) -> list[KeyPath]:
    """Return the settings that an unknown key is likely to mean."""
    named = [tuple(key.split(".")) for key in SYNONYMS.get(path[-1].replace("-", "_"), ())]
    if named and all(key in known for key in named):
        return named
    nearest = _nearest(path, known)
    return [nearest] if nearest else []


def _nearest(path: KeyPath, known: list[KeyPath]) -> KeyPath | None:

    def name_similarity(candidate: KeyPath) -> float:
        return difflib.SequenceMatcher(None, path[-1], candidate[-1]).ratio()

    def similarity(candidate: KeyPath) -> float:
        # a key under the wrong section, or under none, is as close as its own name is
        whole = difflib.SequenceMatcher(None, ".".join(path), ".".join(candidate)).ratio()
        return max(whole, 0.95 * name_similarity(candidate)) + 0.01 * whole

    nearest = max(known, key=similarity)
    if nearest[:-1] == path[:-1] and name_similarity(nearest) <= 0.4:  # its section alone makes a short key look alike
        return None
    return nearest if similarity(nearest) > 0.7 else None


def _path_of(detail: ErrorDetails) -> KeyPath:
    return tuple(str(part) for part in detail["loc"])


def _setting_of(model: type[BaseModel], values: Any, detail: ErrorDetails) -> KeyPath:
    """Return the setting, or the section, in which a fault was found. values: those in which it is."""
    path = _path_of(detail)
    for depth, name in enumerate(path, 1):
        values = values.get(name) if isinstance(values, Mapping) else None
        section = section_class(model.model_fields[name], values)
        if section is None:
            return path[: depth + (name == "slime")]  # which holds flags
        model = section
    return path


def _translate(model: type[Section], source: Source, detail: ErrorDetails) -> str:
    path = _path_of(detail)
    key, kind, context = ".".join(path), detail["type"], detail.get("ctx", {})
    if kind == "literal_error" and path[0] == "slime":  # a flag
        reason = detail["msg"].replace("Input should be", "it must be")
    elif kind == "literal_error":
        return _bad_choice(source, path, detail["input"], _choices(model, source.values, path))
    elif kind == "value_error":  # a section's own check, which names its keys itself
        return f"{source.origin(path)}: {key}: {context['error']}"
    elif kind == "model_type":
        keys = list(_section_at(model, source.values, path).model_fields)
        reason = "it is a section"
        reason += f" with the keys {', '.join(keys)}" if len(keys) <= MOST_CHOICES else ", with a line for each setting"
        reason += ", or true or false" if keys[0] == "enabled" else ""
        reason += ", or the name of a method, such as sat-gspo" if path == ("method",) else ""
    elif kind == "string_pattern_mismatch":
        reason = "it takes letters, digits, '.', '_' and '-', and starts with a letter or a digit"
    elif kind == "too_short":
        reason = f"it needs {context['min_length']} or more"
    elif kind == "string_type":
        reason = "it must be text; put it in quotes"
    else:
        reason = detail["msg"].replace("Input should be", "it must be")
    return f"{source.origin(path)}: {key} is {_shown(detail['input'])}: {reason}"


def _bad_choice(source: Source, path: KeyPath, value: Any, choices: list[str]) -> str:
    close = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    if close and len(choices) > MOST_CHOICES:
        return f"{source.origin(path)}: {'.'.join(path)} is {_shown(value)}{hint}"
    known = ", ".join(choices)
    return f"{source.origin(path)}: {'.'.join(path)} is {_shown(value)}: it must be one of {known}{hint}"


def _shown(value: Any) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _section_at(model: type[BaseModel], values: Any, path: KeyPath) -> type[BaseModel]:
    for name in path:
        values = values.get(name) if isinstance(values, Mapping) else None
        model = section_class(model.model_fields[name], values) or model
    return model


def _choices(model: type[BaseModel], values: Any, path: KeyPath) -> list[str]:
    """Return the values that a Literal field takes."""
    annotation = _section_at(model, values, path[:-1]).model_fields[path[-1]].annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        annotation = next(arg for arg in typing.get_args(annotation) if arg is not type(None))
    return [str(choice) for choice in typing.get_args(annotation)]
