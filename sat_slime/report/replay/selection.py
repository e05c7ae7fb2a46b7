"""Which methods are replayed: their names, the settings laid over them, those of one formula, those without an
answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from sat_slime.config import ConfigError
from sat_slime.config.loader import read_section
from sat_slime.config.method_reading import build_method, method_switches
from sat_slime.config.method_section import MethodConfig
from sat_slime.config.source import parse_value
from sat_slime.objective import Method, check_method, method_names, named_method

ALL = "all"
UNCLIPPED = Method(named_method("grpo").stabilizers, trust_region=None, called="unclipped")
"""The importance-sampled gradient r A of every token, which the others are compared with."""


@dataclass(frozen=True)
class Candidate:
    """A method to be replayed."""

    label: str
    method: Method
    same: tuple[str, ...] = ()
    """Labels of further methods with the same formula, which give the same result on any dump."""


@dataclass(frozen=True)
class LeftOut:
    """A method that cannot be replayed on the dump."""

    label: str
    reason: str


def choose(names: str = ALL, settings: Sequence[str] = ()) -> list[Candidate]:
    """The methods of a comma-separated list, or all, each formula once.

    settings: `sat.alpha=0.95` texts in the keys of a run's `method` section, for the methods that read that key; a
    list of values makes a candidate of each.

    Raises:
        ConfigError: an unknown name, key or value, a combination without meaning, or a setting that no method reads.
    """
    wanted = method_names() if names.strip() == ALL else [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise ConfigError(["--methods names none: give names with commas between them, or all"])
    sweeps = [_sweep(text) for text in settings]
    found: list[tuple[str, Method]] = []
    read: set[str] = set()
    for name in dict.fromkeys(wanted):
        try:
            method = named_method(name)
        except ValueError as error:
            raise ConfigError([f"--methods: {error}"]) from None
        reads = [sweep for sweep in sweeps if any(_with(name, {sweep.key: v}) != method for v in sweep.values)]
        read |= {sweep.text for sweep in reads}
        for values in itertools.product(*(sweep.values for sweep in reads)):
            chosen = {sweep.key: value for sweep, value in zip(reads, values, strict=True)}
            label = " ".join([name, *(f"{key}={_shown(value)}" for key, value in chosen.items())])
            found.append((label, _checked(label, _with(name, chosen) if chosen else method)))
    if unread := [sweep.text for sweep in sweeps if sweep.text not in read]:
        raise ConfigError([f"--set {unread[0]} changes none of the methods {', '.join(wanted)}: leave it out"])
    return _each_formula_once(found)


@dataclass(frozen=True)
class _Sweep:
    text: str
    key: str
    values: list[Any]


def _sweep(text: str) -> _Sweep:
    key, equals, value = text.partition("=")
    key = key.strip().removeprefix("method.")
    if not equals or not key:
        raise ConfigError([f"--set {text}: expected key=value, such as --set sat.alpha=0.95"])
    try:
        parsed = parse_value(value)
    except yaml.YAMLError:
        raise ConfigError([f"--set {text}: the value {value!r} is not valid YAML; quote it"]) from None
    return _Sweep(text, key, parsed if isinstance(parsed, list) else [parsed])


def _with(name: str, settings: dict[str, Any]) -> Method:
    """The named method with dotted keys of the method section set. Raises ConfigError."""
    section: dict[str, Any] = method_switches(name)
    for key, value in settings.items():
        *path, last = key.split(".")
        if path[:1] == ["settings"] and named_method(name).base_is_ours:
            continue  # those of a base that is not ours
        inner = section
        for part in path:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError([f"--set {key}: {part} is no section of method"])
        inner[last] = value
    try:
        return build_method(read_section(MethodConfig, section, f"--set of {name}"))
    except ValueError as error:
        raise ConfigError([f"--set of {name}: {error}"]) from None


def _checked(label: str, method: Method) -> Method:
    try:
        check_method(method)
    except ValueError as error:
        raise ConfigError([f"{label}: {error}"]) from None
    return method


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _each_formula_once(found: Iterable[tuple[str, Method]]) -> list[Candidate]:
    candidates: dict[object, list[tuple[str, Method]]] = {}
    for label, method in found:
        candidates.setdefault(method.formula, []).append((label, method))
    return [Candidate(same[0][0], same[0][1], tuple(label for label, _ in same[1:])) for same in candidates.values()]


def answerable(candidates: Sequence[Candidate], has_checkpoint: bool) -> tuple[list[Candidate], list[LeftOut]]:
    """(the candidates that a dump has the data for, the others with the reason). has_checkpoint: whether it holds
    pi_l."""
    kept, left_out = [], []
    for candidate in candidates:
        reason = lacks(candidate.method, has_checkpoint)
        if reason is None:
            kept.append(candidate)
        else:
            left_out.append(LeftOut(", ".join([candidate.label, *candidate.same]), reason))
    return kept, left_out


def reads_checkpoint(candidate: Candidate) -> bool:
    """Whether the method divides by pi_l."""
    return candidate.method.denominator == "checkpoint"


def lacks(method: Method, has_checkpoint: bool) -> str | None:
    """What the method reads and a dump does not hold, in words; None where nothing is missing."""
    if method.step_constraint is not None:
        return "bounds the optimizer step over the whole vocabulary, and a dump holds the sampled tokens alone"
    if method.top_p_replay:
        return (
            "takes the trainer's softmax over the tokens that the engine sampled from, and a dump has the log-probs of "
            "the forward pass that was made"
        )
    if method.denominator == "checkpoint" and not has_checkpoint:
        return (
            "divides by pi_l, the trainer's log-probs under the generating weights, which this dump does not hold; "
            "those of an embedded run do at steps with a split (diagnose.split_every_n_steps)"
        )
    return None
