"""From YAML and the command line to a checked run, and back to one resolved file."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from sat_slime.config.grid_schema import GridConfig
from sat_slime.config.method_section import SWITCHES, laid_over, method_switches
from sat_slime.config.schema import LabConfig, Section, without_settings_of_another_task
from sat_slime.config.section import Mark, marked, settings_in, settings_of
from sat_slime.config.slime_schema import DEFAULTS, READ, VIEWS, SlimeConfig
from sat_slime.config.source import ConfigError, KeyPath, Source, parse_value, read_layers
from sat_slime.config.synonyms import SYNONYMS
from sat_slime.objective.method import find

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


def load_config(
    path: str | Path, overrides: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> RunConfig:
    """Read a run from a YAML file.

    overrides: `a.b=value` texts of `--set`, the value in YAML. settings: dotted key to value, laid on before them.
    Raises ConfigError with one line for every fault found. What needs several sections is config_errors, for a slime
    run slime_config_errors.
    """
    sources = _layers(path)
    if _only(sources, _OF_A_GRID, _OF_A_RUN):
        raise ConfigError([f"{path}: this is a grid, not a run: sat-slime grid {path}, with --dry-run to check it"])
    settings = dict(settings or {})
    with contextlib.suppress(ValueError):  # an unknown name is told with all that is wrong
        if isinstance(settings.get("method"), str):  # at once: `gspo` and `sat` forget nothing of SAT
            beside = {key: settings.pop(key) for key in list(settings) if re.fullmatch(r"method\.\w+", key)}
            switches = {key.partition(".")[2]: value for key, value in beside.items()}
            settings["method"] = method_switches(settings["method"]) | switches
    sources += [_setting(key, value) for key, value in settings.items()]
    return _run({}, str(path), sources, overrides)


def vary(
    config: RunConfig, layers: Sequence[tuple[str, Mapping[str, Any]]], overrides: Sequence[str] = ()
) -> RunConfig:
    """Return `config` with layers of settings over it, each with the place that is said where a fault is found. Their
    keys may be sections or dotted. overrides: as of load_config, laid on last. Raises ConfigError."""
    sources = [_setting(key, value, place) for place, settings in layers for key, value in settings.items()]
    return _run(config.model_dump(mode="json"), config.name, sources, overrides)


def load_grid(path: str | Path, settings: Mapping[str, Any] | None = None) -> GridConfig:
    """Read a grid from a YAML file. settings: dotted key to value, laid over it. Raises ConfigError."""
    layers = _layers(path)
    if _only(layers, _OF_A_RUN, _OF_A_GRID):
        raise ConfigError([f"{path}: this is a run, not a grid: sat-slime launch {path}"])
    grid = Source({}, {(): str(path)})
    for layer in [*layers, *(_setting(key, value) for key, value in (settings or {}).items())]:
        grid.update(layer)
    return _validated(GridConfig, grid)


def read_section(model: type[SectionT], values: Any, place: str) -> SectionT:
    """Return a section from plain values, as in a file. `place` is said where a fault is found. Raises ConfigError."""
    if not isinstance(values, Mapping):
        raise ConfigError([f"{place}: it is a section with the keys {', '.join(model.model_fields)}"])
    return _validated(model, Source(dict(values), {(): place}))


def dump_config(config: Section) -> str:
    """Return the run as YAML with every field written out; load_config of it gives an equal config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def key_paths(model: type, values: Mapping[str, Any] | None = None) -> Iterator[KeyPath]:
    """Yield every setting of `model` that holds a value, sections left out. values: of a run, whose task they may
    name."""
    return _key_paths(settings_of(model), values)


def _key_paths(fields: Mapping[str, FieldInfo], values: Mapping[str, Any] | None) -> Iterator[KeyPath]:
    for name, field in fields.items():
        inner = settings_in(field, (values or {}).get(name))
        if inner is None:
            yield (name,)
        else:
            yield from ((name, *rest) for rest in _key_paths(inner, None))


def marked_settings(mark: Mark) -> frozenset[str]:
    """Return the dotted keys of the settings and sections that bear `mark` in a run of any runtime."""
    return frozenset(key for model in RUNTIMES.values() for key in marked(model, mark))


# ---------------------------------------------------------------------------------------------- layers over one another


def _layers(path: str | Path) -> list[Source]:
    try:
        return read_layers(path)
    except FileNotFoundError as error:
        model = re.fullmatch(r"[\w-]+/(?=.*[A-Z0-9])[\w.-]+", str(path)) and Path(path).suffix not in (".yaml", ".yml")
        hint = "`sat-slime init slime`, and set slime.hf-checkpoint in slime.yaml to the folder of its weights"
        raise ConfigError([f"{error}: for a model, {hint}" if model else str(error)]) from None


def _only(layers: Sequence[Source], some: set[str], none: set[str]) -> bool:
    """Return whether the files have keys out of `some`, and none out of `none`."""
    keys = {key for layer in layers for key in layer.values}
    return bool(keys & some) and not keys & none


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


def _run(values: dict[str, Any], place: str, sources: Sequence[Source], overrides: Sequence[str]) -> RunConfig:
    """Return `values` with the sources over them, and then the overrides. Raises ConfigError with all that is wrong."""
    run = Source(values, {(): place})
    errors: list[str] = []
    for text in sorted(overrides, key=lambda text: not text.startswith("task.name=")):  # whose settings the others are
        try:
            sources = [*sources, _override(text)]
        except ConfigError as error:
            errors += error.errors
    for source in sources:
        below = run.values.get("method")
        run.values = without_settings_of_another_task(run.values, source.values)
        run.update(source)
        if "method" in source.values:
            try:
                section = laid_over(below if isinstance(below, Mapping) else {}, source.values["method"])
            except ValueError:  # which is told with all that is wrong
                section = source.values["method"]
            run.values = {**run.values, "method": section}
    runtime = run.values.get("runtime", "lab")
    model = RUNTIMES.get(runtime) if isinstance(runtime, str) else None
    if model is None:
        raise ConfigError([*errors, _bad_choice(run.origin(("runtime",)), ("runtime",), runtime, list(RUNTIMES))])
    return _validated(model, run, errors)


# ------------------------------------------------------------------------------------------------------ what is wrong


def _validated(model: type[SectionT], source: Source, errors: Sequence[str] = ()) -> SectionT:
    """errors: what was found before."""
    errors = list(errors)
    try:
        sound = model.model_validate(source.values)
        if not errors:
            return sound
    except ValidationError as error:
        for detail in error.errors():
            errors += _told(model, source, detail)
    raise ConfigError(errors)


def _told(model: type[Section], source: Source, detail: ErrorDetails) -> Iterator[str]:
    """Yield the lines that tell a fault."""
    path = tuple(str(part) for part in detail["loc"])
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    key, place = ".".join(path), source.origin(path)
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        for leaf in _leaves(path, value):
            hint = _hint(model, source.values, leaf, value, len(leaf) == len(path))
            yield f"{source.origin(leaf)}: unknown key '{'.'.join(leaf)}'{hint}"
        return
    if kind == "literal_error":
        yield _bad_choice(place, path, value, re.findall(r"'([^']*)'", context["expected"]))
        return
    if kind == "value_error":  # a section's own check, which names its keys itself
        yield f"{place}: {key}: {context['error']}"
        return
    if kind in ("model_type", "dataclass_type") and value is None:
        yield f"{place}: {key} is empty: write settings below it, or leave it out"
        return
    if kind in ("model_type", "dataclass_type"):
        keys = list(_fields_at(model, source.values, path))
        reason = "it is a section"
        reason += f" with the keys {', '.join(keys)}" if len(keys) <= MOST_CHOICES else ", with a line for each setting"
        reason += ", or true or false" if path[-1] in SWITCHES else ""
        reason += ", or the name of a method, such as sat-gspo" if path == ("method",) else ""
    elif kind == "string_pattern_mismatch":
        reason = "it takes letters, digits, '.', '_' and '-', and starts with a letter or a digit"
    elif kind == "too_short":
        reason = f"it needs {context['min_length']} or more"
    elif kind == "string_type":
        reason = "it must be text; put it in quotes"
    else:
        reason = detail["msg"].replace("Input should be", "it must be")
    yield f"{place}: {key} is {_shown(value)}: {reason}"


def _leaves(path: KeyPath, value: Any) -> list[KeyPath]:
    if not isinstance(value, Mapping) or not value:
        return [path]
    return [leaf for key, inner in value.items() for leaf in _leaves((*path, key), inner)]


def _fields_at(model: type[BaseModel], values: Any, path: KeyPath) -> Mapping[str, FieldInfo]:
    fields: Mapping[str, FieldInfo] = model.model_fields
    for name in path:
        values = values.get(name) if isinstance(values, Mapping) else None
        fields = (settings_in(fields[name], values) if name in fields else None) or {}
    return fields


def _bad_choice(place: str, path: KeyPath, value: Any, choices: list[str]) -> str:
    close = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    if close and len(choices) > MOST_CHOICES:
        return f"{place}: {'.'.join(path)} is {_shown(value)}{hint}"
    return f"{place}: {'.'.join(path)} is {_shown(value)}: it must be one of {', '.join(choices)}{hint}"


def _shown(value: Any) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


# ------------------------------------------------------------------------------------------ what an unknown key means


def _hint(model: type[Section], values: Any, leaf: KeyPath, value: Any, is_whole: bool) -> str:
    """Return the end of the line about an unknown key. is_whole: its section is known."""
    if leaf[-1] == "enabled" and len(leaf) > 1 and leaf[-2] in SWITCHES:
        return f": set {'.'.join(leaf[:-1])} to {_shown(value)}"
    if leaf[-2:-1] == ("settings",) and (kind := find(str(values.get("method", values).get("base")))):
        return f"; {kind.name} has {', '.join(settings_of(kind)) or 'none'}"
    switches = [("method", key) for key in SWITCHES] if "method" in model.model_fields else []
    meant = _meant(leaf, [*key_paths(model, values), *switches])
    if model is SlimeConfig and (flag := _flag(leaf, meant)):
        return f"; slime's flags stand under slime: did you mean slime.{flag}?"
    for runtime, other in RUNTIMES.items() if model in RUNTIMES.values() else ():
        if other is not model and leaf in key_paths(other):
            return f"; it is a setting of {runtime} runs alone"
    if meant:
        return f"; did you mean {' and '.join(repr('.'.join(each)) for each in meant)}?"
    where, keys = ".".join(leaf[:-1]) or "a file", _fields_at(model, values, leaf[:-1])
    return f"; {where} has {', '.join(keys or model.model_fields)}" if is_whole else ""


def _flag(leaf: KeyPath, meant: Sequence[KeyPath]) -> str | None:
    """Return the flag of slime that a key is likely to mean, if that is likelier than the settings of ours that it may
    mean: its name, or the word by which this package reads it, such as rollout.top_p."""
    if leaf[0] == "method" or any(path[-1] == leaf[-1] for path in meant):
        return None
    flags = list(READ.__annotations__ | DEFAULTS)
    words = ["-".join(words).replace("_", "-") for words in (leaf, leaf[-1:])]
    ours = vars(VIEWS[leaf[0]]).get(leaf[1]) if leaf[0] in VIEWS and len(leaf) == 2 else None
    exact = [word for word in (getattr(ours, "name", ""), *words) if word in flags]
    return next(iter(exact or difflib.get_close_matches(words[1], () if meant else flags, 1, 0.6)), None)


def _meant(leaf: KeyPath, known: list[KeyPath]) -> list[KeyPath]:
    """Return the settings that an unknown key is likely to mean."""
    named = [tuple(key.split(".")) for key in SYNONYMS.get(leaf[-1].replace("-", "_"), ())]
    if named and all(key in known for key in named):
        return named

    def alike(candidate: KeyPath) -> float:
        return difflib.SequenceMatcher(None, leaf[-1], candidate[-1]).ratio()

    def similarity(candidate: KeyPath) -> float:
        # a key under the wrong section, or under none, is as close as its own name is
        whole = difflib.SequenceMatcher(None, ".".join(leaf), ".".join(candidate)).ratio()
        return max(whole, 0.95 * alike(candidate)) + 0.01 * whole

    nearest = max(known, key=similarity)
    if nearest[:-1] == leaf[:-1] and alike(nearest) <= 0.4:  # its section alone makes a short key look alike
        return []
    return [nearest] if similarity(nearest) > 0.7 else []
