"""Chooses the methods to be replayed: by name, with settings laid over them, each formula once, none without an
answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from sat_slime.config import ConfigError
from sat_slime.config.loader import read_section
from sat_slime.config.method_section import MethodConfig, build_method, method_switches
from sat_slime.config.source import parse_value
from sat_slime.objective import PAPER_METHODS, Method, check_method, method_names, named_method
from sat_slime.report.dumps.step_batch import Column
from sat_slime.report.judged import JUDGED_BY, judged_by

ALL, USUAL = "all", "usual"
ASYNCHRONOUS = (
    "decoupled",
    "mis-geo",
    "cispo",
    "m2po",
    "opsm",
    "seq-tis",
    "flash",
)
"""Methods that the public trainers ship for asynchronous training besides the paper's."""
UNCLIPPED = Method(named_method("grpo").stabilizers, clip=None, called="unclipped")
"""The importance-sampled gradient r A of every token, which the others are compared with."""


@dataclass(frozen=True)
class Candidate:
    """A method to be replayed."""

    label: str
    method: Method
    same: tuple[str, ...] = ()
    """Labels of further methods with the same formula, which give the same result on any dump."""
    refused: str = ""
    """Why it means nothing with the settings that were laid over it; empty where it means something."""


@dataclass(frozen=True)
class LeftOut:
    """Methods that cannot be replayed on the dump, for one reason."""

    label: str
    reason: str


def choose(names: str = USUAL, settings: Sequence[str] = ()) -> list[Candidate]:
    """Choose the methods of a comma-separated list, all of them, or the usual ones; each formula once, by what they
    judge by. Of all and of the usual ones those are kept, as refused, that mean nothing with the settings.

    settings: `sat.alpha=0.95` texts in the keys of a run's `method` section, for the methods that read that key; a
    list of values makes a candidate of each.

    Raises:
        ConfigError: an unknown name, key or value, a combination without meaning, or a setting that no method reads.
    """
    wanted = _wanted(names)
    sweeps = [_sweep(text) for text in settings]
    chosen: list[tuple[str, Method]] = []
    refused: list[Candidate] = []
    read: set[str] = set()
    for name in dict.fromkeys(wanted):
        try:
            method = named_method(name)
        except ValueError as error:
            raise ConfigError([f"--methods: {error}"]) from None
        reads = [sweep for sweep in sweeps if any(_with(name, {sweep.key: v}) != method for v in sweep.values)]
        read |= {sweep.text for sweep in reads}
        for values in itertools.product(*(sweep.values for sweep in reads)):
            varied = {sweep.key: value for sweep, value in zip(reads, values, strict=True)}
            label = " ".join([name, *(f"{key}={_shown(value)}" for key, value in varied.items())])
            candidate = _with(name, varied) if varied else method
            if reason := _refusal(candidate):
                if not names_several(names):
                    raise ConfigError([f"{label}: {reason}; or leave {name} out of --methods"])
                refused.append(Candidate(label, candidate, refused=reason))
                continue
            chosen.append((label, candidate))
    if unread := [sweep.text for sweep in sweeps if sweep.text not in read]:
        raise ConfigError([f"--set {unread[0]} changes none of the methods {', '.join(wanted)}: leave it out"])
    order = sorted(_each_formula_once(chosen), key=lambda candidate: JUDGED_BY.index(judged_by(candidate.method)))
    return [*order, *refused]


def names_several(names: str) -> bool:
    """Say whether `names` stands for methods that nobody has named one by one: `all`, or `usual`."""
    return names.strip() in (ALL, USUAL)


def _wanted(names: str) -> list[str]:
    several = {ALL: method_names, USUAL: usual_names}.get(names.strip())
    wanted = several() if several else [name.strip() for name in names.split(",") if name.strip()]
    if mixed := {ALL, USUAL}.intersection(wanted):
        raise ConfigError([f"--methods {names}: {mixed.pop()} stands alone: leave it out, or the other names"])
    if not wanted:
        raise ConfigError([f"--methods names none: give names with commas between them, {ALL} or {USUAL}"])
    return wanted


def usual_names() -> list[str]:
    """Return the names of the paper's methods, and of what else asynchronous training is done with today."""
    return [*(method.name for method in PAPER_METHODS), *ASYNCHRONOUS]


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
    """Return the named method with dotted keys of the method section set. Raises ConfigError."""
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
    config = read_section(MethodConfig, section, f"--set of {name}")
    try:
        return build_method(config)
    except ValueError as error:
        raise ConfigError([f"--set of {name}: {error}"]) from None


def _refusal(method: Method) -> str:
    """Say why a method means nothing; empty where it means something."""
    try:
        check_method(method)
    except ValueError as error:
        return str(error).removeprefix(f"{method.name}: ")
    return ""


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _each_formula_once(methods: Iterable[tuple[str, Method]]) -> list[Candidate]:
    candidates: dict[object, list[tuple[str, Method]]] = {}
    for label, method in methods:
        candidates.setdefault(method.formula, []).append((label, method))
    return [Candidate(same[0][0], same[0][1], tuple(label for label, _ in same[1:])) for same in candidates.values()]


def read_columns(method: Method) -> frozenset[Column]:
    """Return the columns that the method reads of those that only some dumps hold."""
    pi_l: set[Column] = {"checkpoint_log_probs"} if method.denominator == "checkpoint" else set()
    return frozenset(pi_l.union(method.needs))


def answerable(candidates: Sequence[Candidate], columns: frozenset[Column]) -> tuple[list[Candidate], list[LeftOut]]:
    """Return (the candidates that a dump with these columns has the data for, the others with the reason)."""
    kept: list[Candidate] = []
    by_reason: dict[str, list[str]] = {}
    for candidate in candidates:
        reason = candidate.refused or lacks(candidate.method, columns)
        if reason is None:
            kept.append(candidate)
        else:
            by_reason.setdefault(reason, []).extend([candidate.label, *candidate.same])
    return kept, [LeftOut(", ".join(labels), reason) for reason, labels in by_reason.items()]


def lacks(method: Method, columns: frozenset[Column]) -> str | None:
    """Say what the method reads and a dump with these columns does not hold; None where nothing is missing."""
    if method.step_constraint is not None:
        return "bounds the optimizer step over the whole vocabulary, and a dump holds only the sampled tokens"
    if method.top_p_replay:
        return (
            "takes the trainer's softmax over the tokens that the engine sampled from, and a dump has the log-probs of "
            "the forward pass that was made"
        )
    missing = sorted(read_columns(method) - columns)
    return "; ".join(ABSENT[column] for column in missing) if missing else None


ABSENT: dict[Column, str] = {
    "checkpoint_log_probs": (
        "divides by pi_l, the trainer's log-probs under the generating weights, which this dump does not hold; "
        "those of an embedded run do at steps with a split (diagnose.split_every_n_steps)"
    ),
    "lags": (
        "reads the lag of each token, and this dump does not hold the versions of the generating weights; those of an "
        "embedded run do"
    ),
    "rewards": (
        "reads each response's reward before any baseline, which this dump does not hold; those of an embedded run and "
        "of later slime do, and TOPR reads none with --set topr.good_by=advantage"
    ),
}
"""Why a method cannot be replayed on a dump without the column, and what helps."""
