"""From YAML and the command line to a checked run, and back to one resolved file."""

from __future__ import annotations

import contextlib
import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sat_slime.config.method_section import SWITCHES, laid_over, method_switches
from sat_slime.config.schema import GridConfig, LabConfig, Section
from sat_slime.config.section import flat, marked, section_of, settings_of
from sat_slime.config.slime_schema import DEFAULTS, WORDS, SlimeConfig
from sat_slime.config.source import ConfigError, Dumper, KeyPath, Source, merged, parse_setting, read_layers
from sat_slime.objective.method import find

SectionT = TypeVar("SectionT", bound=Section)

RunConfig = LabConfig | SlimeConfig
RUNTIMES: dict[str, type[RunConfig]] = {"lab": LabConfig, "slime": SlimeConfig}
"""The class behind each value of `runtime:`."""
PLUGIN_KEYS = ("sat_slime", "custom_loss_function_path")
"""Keys by which the plugin's file (sat_slime.config.plugin_file) is known from a run's."""
LARGEST = 10**15
"""No setting takes a whole number beyond it; a plan reckons with them in floats."""
SHOWN_CHARACTERS = 80
"""Characters of a faulty value that a message shows."""
REASONS = {
    "string_pattern_mismatch": "it takes letters, digits, '.', '_' and '-', and starts with a letter or a digit",
    "too_short": "it needs {min_length} or more",
    "string_type": "it must be text; put it in quotes",
    "invalid_key": "a key must be text; put it in quotes",
}
"""What to say of a fault in place of pydantic's words, by its type there."""
MOST_CHOICES = 12
"""A message lists no more values than these where it knows which was meant, and no more keys of a section."""


def load_config(
    path: str | Path, overrides: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> RunConfig:
    """Read a run from a YAML file. What needs several sections is config_errors, for a slime run slime_config_errors.
    overrides: `a.b=value` texts of `--set`, the value in YAML. settings: dotted key to value, laid on before them.
    Raises ConfigError with one line for every fault found."""
    layers = _layers(
        path, [*RUNTIMES.values()], [GridConfig], "a grid, not a run: sat-slime grid {}, with --dry-run to check it"
    )
    return _run([*layers, _layer(settings or {}, "command line")], overrides)


def vary(
    config: RunConfig, layers: Sequence[tuple[str, Mapping[str, Any]]], overrides: Sequence[str] = ()
) -> RunConfig:
    """Return `config` with layers of settings over it, each with the place that is said where a fault is found. Their
    keys may be sections or dotted. overrides: as of load_config, laid on last. Raises ConfigError."""
    below = Source(config.model_dump(mode="json"), {(): config.name})
    return _run([below, *(_layer(settings, place) for place, settings in layers)], overrides)


def load_grid(path: str | Path, settings: Mapping[str, Any] | None = None) -> GridConfig:
    """Read a grid from a YAML file. settings: dotted key to value, laid over it. Raises ConfigError."""
    layers = _layers(path, [GridConfig], [*RUNTIMES.values()], "a run, not a grid: sat-slime launch {}")
    return _validated(GridConfig, _laid([*layers, _layer(settings or {}, "command line")]))


def read_section(model: type[SectionT], values: Any, place: str) -> SectionT:
    """Return a section from plain values, as in a file. `place` is said where a fault is found. Raises ConfigError."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{place}: it is a section with the keys {', '.join(model.model_fields)}")
    return _validated(model, Source(dict(values), {(): place}))


def dump_config(config: Section) -> str:
    """Return the run as YAML with every field written out; load_config of it gives an equal config."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=Dumper, sort_keys=False, allow_unicode=True)


def key_paths(model: type) -> Iterator[KeyPath]:
    """Yield every setting of `model` that holds a value, sections left out."""
    for name, field in settings_of(model).items():
        inner = section_of(field)
        yield from ((name, *rest) for rest in key_paths(inner)) if inner else [(name,)]


def marked_settings(mark: str) -> frozenset[str]:
    """Return the dotted keys of the settings and sections that bear `mark` in a run of any runtime."""
    return frozenset(key for model in RUNTIMES.values() for key in marked(model, mark))


def _layers(
    path: str | Path, these: Sequence[type[Section]], others: Sequence[type[Section]], told: str
) -> list[Source]:
    """Return what the files say. Raises ConfigError, with `told` where they have keys that only `others` have, and none
    that only `these` have, and where they have the plugin's."""
    try:
        layers = read_layers(path)
    except FileNotFoundError as error:
        model = re.fullmatch(r"[\w-]+/(?=.*[A-Z0-9])[\w.-]+", str(path)) and Path(path).suffix not in (".yaml", ".yml")
        hint = "`sat-slime init slime`, and set slime.hf-checkpoint in slime.yaml to the folder of its weights"
        raise ConfigError(f"{error}: for a model, {hint}" if model else str(error)) from None
    of_these, of_others = ({key for model in models for key in model.model_fields} for models in (these, others))
    keys = {key for layer in layers for key in layer.values}
    if not keys.isdisjoint(PLUGIN_KEYS):
        told = "the plugin's file, not a run: sat-slime check {} checks it, and slime takes it as --custom-config-path"
    elif not keys & (of_others - of_these) or keys & (of_these - of_others):
        return layers
    raise ConfigError(f"{path}: this is {told.format(shlex.quote(str(path)))}")


def _layer(settings: Mapping[str, Any], place: str) -> Source:
    """Return settings by dotted keys as one layer, so that `method: gspo` and `method.sat: true` forget nothing of
    SAT."""
    layer = Source({}, {})
    for key, value in settings.items():
        path = tuple(key.split("."))
        if path[0] == "method" and isinstance(layer.values.get("method"), str):
            continue  # its name is unknown, which is told with all that is wrong
        if path == ("method",) and isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = method_switches(value)
        for name in reversed(path):
            value = {name: value}
        layer.values = merged(layer.values, value)
        layer.origins |= {path[: depth + 1]: place for depth in range(len(path))}
    return layer


def _laid(layers: Iterable[Source]) -> Source:
    whole = Source({}, {})
    for layer in layers:
        values = merged(whole.values, layer.values)
        if "method" in layer.values:
            below = whole.values.get("method")
            with contextlib.suppress(ValueError):  # an unknown name, as above
                values["method"] = laid_over(below if isinstance(below, Mapping) else {}, layer.values["method"])
        whole = Source(values, whole.origins | layer.origins)
    return whole


def _run(layers: Sequence[Source], overrides: Sequence[str]) -> RunConfig:
    """Return the layers over one another, and then the overrides. Raises ConfigError with all that is wrong."""
    layers, errors = list(layers), []
    for text in overrides:
        try:
            key, value = parse_setting(text)
            layers.append(_layer({key: value}, f"--set {text}"))
        except ConfigError as error:
            errors += error.errors
    run = _laid(layers)
    if "slime" in run.values and "runtime" not in run.values:
        raise ConfigError(*errors, f"{run.origin(('slime',))}: slime is set, and runtime is not: add `runtime: slime`")
    runtime = run.values.get("runtime", "lab")
    model = RUNTIMES.get(runtime) if isinstance(runtime, str) else None
    if model is None:
        raise ConfigError(*errors, _bad_choice(run.origin(("runtime",)), ("runtime",), runtime, list(RUNTIMES)))
    return _validated(model, run, errors)


def _validated(model: type[SectionT], source: Source, errors: Sequence[str] = ()) -> SectionT:
    """errors: what was found before."""
    errors, values = list(errors), flat(source.values)
    large = {key for key, value in values.items() if isinstance(value, int) and abs(value) > LARGEST}
    try:
        sound = model.model_validate(source.values)
        if not errors and not large:
            return sound
    except ValidationError as error:
        for detail in error.errors():
            errors += _told(model, source, detail)
            large.discard(".".join(str(part) for part in detail["loc"]))
    for key in sorted(large):
        place = source.origin(tuple(key.split(".")))
        errors.append(f"{place}: {key} is {_shown(values[key])}: it must be 10^15 at most")
    raise ConfigError(*errors)


def _told(model: type[Section], source: Source, detail: ErrorDetails) -> Iterator[str]:
    """Yield the lines that tell a fault."""
    path = tuple(str(part) for part in detail["loc"])
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    key, place = ".".join(path), source.origin(path)
    is_section = kind in ("model_type", "dataclass_type")
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        for number, leaf in enumerate(_leaves(path, value)):
            hint = _hint(model, source.values, leaf, path[:-1] if number == 0 else None)
            yield f"{source.origin(leaf)}: unknown key '{'.'.join(leaf)}'{hint}"
    elif kind == "literal_error":
        yield _bad_choice(place, path, value, re.findall(r"'([^']*)'", context["expected"]))
    elif kind == "value_error":  # a section's own check, which names its keys itself
        yield f"{place}: {key}: {context['error']}"
    elif is_section and value is None:
        yield f"{place}: {key} is empty: write settings below it, or leave it out"
    else:
        reason = detail["msg"].replace("Input should be", "it must be")
        if kind in REASONS:
            reason = REASONS[kind].format(**context)
        elif is_section:
            keys = _keys_at(model, path)
            reason = "it is a section" + (f" with the keys {', '.join(keys)}" if len(keys) <= MOST_CHOICES else "")
            reason += ", or true or false" if path[-1] in SWITCHES else ""
            reason += ", or the name of a method, such as sat-gspo" if path == ("method",) else ""
        yield f"{place}: {key} is {_shown(value)}: {reason}"


def _leaves(path: KeyPath, value: Any) -> list[KeyPath]:
    if not isinstance(value, Mapping) or not value:
        return [path]
    return [leaf for key, inner in value.items() for leaf in _leaves((*path, str(key)), inner)]


def _keys_at(model: type, path: KeyPath) -> list[str]:
    """Return the keys of the section at `path`; none where there is no section."""
    inner: type | None = model
    for name in path:
        field = settings_of(inner).get(name) if inner else None
        inner = section_of(field) if field else None
    return list(settings_of(inner)) if inner else []


def _bad_choice(place: str, path: KeyPath, value: Any, choices: list[str]) -> str:
    close = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    known = "" if close and len(choices) > MOST_CHOICES else f": it must be one of {', '.join(choices)}"
    return f"{place}: {'.'.join(path)} is {_shown(value)}{known}{hint}"


def _shown(value: Any) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _hint(model: type[Section], values: Any, leaf: KeyPath, within: KeyPath | None) -> str:
    """Return the end of the line about an unknown key. within: the nearest section that is known; None where its keys
    have been told."""
    at = ("method",) if "method" in model.model_fields else ()
    if leaf[:-1] == (*at, "settings") and (kind := find(str((values["method"] if at else values).get("base")))):
        return f"; {kind.name} has {', '.join(settings_of(kind)) or 'none'}"
    known = _known(model)
    for runtime, other in RUNTIMES.items() if model in RUNTIMES.values() and leaf not in known else ():
        if other is not model and leaf in key_paths(other):
            return f"; it is a setting of {runtime} runs alone"
    if meant := _meant(leaf, known):
        return f"; did you mean '{meant}'?"
    if within is None:
        return ""
    return f"; {'.'.join(within) or 'a file'} has {', '.join(_keys_at(model, within) or model.model_fields)}"


def _known(model: type[Section]) -> dict[KeyPath, str]:
    """Return the keys that may be meant, of a slime run also the words for its flags, and the setting of each."""
    known = {path: ".".join(path) for path in key_paths(model)}
    if "method" in model.model_fields:
        known |= {("method", key): f"method.{key}" for key in SWITCHES}
    if model is SlimeConfig:
        known |= {("slime", name): f"slime.{name}" for name in DEFAULTS}
        for word, flag in WORDS.items():
            known |= dict.fromkeys((word, ("slime", flag.name)), f"slime.{flag.name}")
    return known


def _meant(leaf: KeyPath, known: Mapping[KeyPath, str]) -> str | None:
    """Return the setting that an unknown key is likely to mean: one of the nearest name, in the nearest place."""

    def ratio(one: str, other: str) -> float:
        return difflib.SequenceMatcher(None, one.replace("-", "_"), other.replace("-", "_")).ratio()

    def closeness(candidate: KeyPath) -> tuple[float, float]:
        return ratio(leaf[-1], candidate[-1]), ratio(".".join(leaf), ".".join(candidate))

    nearest = max(known, key=closeness)
    return known[nearest] if closeness(nearest)[0] > (0.65 if nearest[:-1] == leaf[:-1] else 0.8) else None
