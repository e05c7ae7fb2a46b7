"""The flags of the slime that is installed, or a recorded list of slime's flags.

slime ignores an unknown flag without a word, and its SGLang parser takes an abbreviation for a flag; so every flag of a
command is checked against this list before it is sent. `slime_flags.json` has the flags of two versions of slime, and
those that the text of the newest version's parser shows; `built_with` says how each was read. To record a version anew,
with slime and Megatron-LM on PYTHONPATH (inside slime's image they are):

    python -m sat_slime.plugin.launch.flags --record sat_slime/plugin/launch/slime_flags.json \
        --version main --commit 624b824a8...
"""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("slime_flags.json")
_TIMEOUT_S = 300
"""Seconds that asking slime's parser may take: it imports torch, SGLang and Megatron."""


@dataclass(frozen=True)
class Flag:
    """A flag as slime's parser knows it."""

    name: str
    """The flag's first name, with the dashes."""
    values: int | str = 1
    """How many values follow the flag: a number, or `?` (none or one), `*` (any number), `+` (one or more)."""
    type: str | None = None
    """Type of the values, int or float; None where any text will do, or slime reads it in its own way."""
    choices: tuple[str, ...] = ()
    """The values that the flag takes; empty: any."""
    repeatable: bool = False
    """Whether the flag keeps both values when it is given twice; any other flag keeps the last one."""


@dataclass(frozen=True)
class KnownFlags:
    """The flags of one slime, or of all recorded versions together."""

    source: str
    """Which slime the flags are of, for messages."""
    by_name: Mapping[str, Flag]
    """The flags, each by every name that it has."""


def known_flags(
    slime_dir: str | None = None, megatron_dir: str | None = None, variables: Mapping[str, str] | None = None
) -> KnownFlags:
    """The flags of the slime that is installed or lies in `slime_dir`, else the recorded ones.

    Asking the real parser takes some seconds, in a separate process. `source` of the result says what was asked.
    variables: more environment of that process, such as that of a run on a CPU, without which slime may not import.
    """
    folders = [folder for folder in (megatron_dir, slime_dir) if folder and Path(folder).is_dir()]
    if not (slime_dir in folders or _slime_is_installed()):
        return recorded_flags()
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "flags.json"
        path = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
        try:
            subprocess.run(
                [sys.executable, "-m", __name__, "--record", str(file)],
                env={**os.environ, "PYTHONPATH": path, **(variables or {})},
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=True,
            )
            where = slime_dir if slime_dir in folders else "as installed"
            return KnownFlags(f"slime {where}", _by_name(json.loads(file.read_text())["flags"]))
        except (OSError, subprocess.SubprocessError) as error:
            lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            recorded = recorded_flags()
            return KnownFlags(f"{recorded.source} (the installed one failed: {lines[-1]})", recorded.by_name)


@functools.cache
def recorded_flags(version: str | None = None) -> KnownFlags:
    """The flags of one recorded version of slime, or those of all versions together where none is named."""
    data = json.loads(RECORDED.read_text())
    versions = data["versions"]
    flags = {
        name: spec for name, spec in data["flags"].items() if version is None or version in spec.get("only", versions)
    }
    named = {version: versions[version]} if version else versions
    *others, last = (f"{name} ({commit[:9]})" for name, commit in named.items())
    source = " and ".join([*([", ".join(others)] if others else []), last])
    return KnownFlags(f"slime {source} as recorded", _by_name(flags))


def unknown_flags(args: Sequence[str], known: KnownFlags, keys: Mapping[str, str] | None = None) -> list[str]:
    """A line for every fault of a command's flags: one that is unknown, abbreviated or repeated, or whose values do not
    fit.

    keys: the setting that each flag came from, by the flag with its dashes.
    """
    errors: list[str] = []
    seen: set[str] = set()
    for name, values in _split(args):
        key = (keys or {}).get(name) or name
        flag = known.by_name.get(name)
        if flag is None:
            errors.append(f"{key}: there is no flag {name} in {known.source}{_nearest(name, known)}")
            continue
        if flag.name in seen and not flag.repeatable:
            again = "is given twice" if name == flag.name else f"is {flag.name}, which the command has already"
            errors.append(f"{key}: {name} {again}, and slime takes the last: leave one of them out")
        seen.add(flag.name)
        errors += [f"{key}: {fault}" for fault in _value_faults(flag, name, values)]
    return errors


def _split(args: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag of a command line with the values that follow it."""
    name: str | None = None
    values: list[str] = []
    for word in args:
        if word.startswith("--"):
            if name is not None:
                yield name, values
            name, equals, value = word.partition("=")
            values = [value] if equals else []
        elif name is not None:
            values.append(word)
    if name is not None:
        yield name, values


def _value_faults(flag: Flag, name: str, values: list[str]) -> Iterator[str]:
    shown = " ".join(values)
    if isinstance(flag.values, int):
        if len(values) != flag.values:
            takes = "no value: true sets it" if flag.values == 0 else f"{flag.values} value(s)"
            yield f"{name} takes {takes}, not {shown!r}" if values else f"{name} takes {takes}, and has none"
            return
    elif (flag.values == "+" and not values) or (flag.values == "?" and len(values) > 1):
        yield f"{name} takes {'one value or more' if flag.values == '+' else 'one value at most'}, not {shown!r}"
        return
    for value in values:
        if flag.choices and value not in flag.choices:
            yield f"{name} is {value!r}: it must be one of {', '.join(flag.choices)}"
        elif flag.type and not _reads_as(value, flag.type):
            yield f"{name} is {value!r}: it must be {'a whole number' if flag.type == 'int' else 'a number'}"


def _reads_as(value: str, type_name: str) -> bool:
    try:
        int(value) if type_name == "int" else float(value)
    except ValueError:
        return False
    return True


def _nearest(name: str, known: KnownFlags) -> str:
    longer = sorted((full for full in known.by_name if full.startswith(name)), key=len)
    close = longer[:1] or difflib.get_close_matches(name, known.by_name, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}? Flags are written in full" if close else ""


# ------------------------------------------------------------------------------------- asking the real parser


def _slime_is_installed() -> bool:
    """Whether THUDM's slime can be imported: PyPI has another package slime, which lacks this module."""
    try:
        return importlib.util.find_spec("slime.backends") is not None
    except ImportError:
        return False


def installed_flags() -> dict[str, dict[str, Any]]:
    """Flags of the slime on the path, in the form in which they are recorded. Imports slime, SGLang and Megatron-LM.

    slime builds its parsers while it parses, so each parser is caught when slime uses it.
    """
    from slime.utils.arguments import parse_args

    parsers: list[argparse.ArgumentParser] = []
    parse_known_args = argparse.ArgumentParser.parse_known_args

    def caught(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        parsers.append(self)
        return parse_known_args(self, *args, **kwargs)

    argv = sys.argv
    argparse.ArgumentParser.parse_known_args = caught  # type: ignore[method-assign]
    try:
        sys.argv = ["train_async.py", "--rollout-batch-size", "1"]
        parse_args()
    except (Exception, SystemExit):  # a command with one flag is no run; only its parsers are wanted
        pass
    finally:
        sys.argv = argv
        argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign]
    flags = {}
    for parser in parsers:
        for action in parser._actions:
            if names := [name for name in action.option_strings if name.startswith("--") and name != "--help"]:
                flags[names[0]] = _spec(action, names)
    missing = {"--num-layers", "--rollout-batch-size", "--sglang-mem-fraction-static"} - flags.keys()
    if missing:
        raise RuntimeError(f"slime's parsers have no {', '.join(sorted(missing))}: it parses in a way not known here")
    return dict(sorted(flags.items()))


def _spec(action: argparse.Action, names: list[str]) -> dict[str, Any]:
    spec: dict[str, Any] = {"values": 1 if action.nargs is None else action.nargs}
    if names[1:]:
        spec["aliases"] = names[1:]
    if action.type in (int, float):
        spec["type"] = action.type.__name__
    choices = list(action.choices or [])
    if choices and all(isinstance(choice, (str, int)) for choice in choices):  # an enumeration reads its own names
        spec["choices"] = [str(choice) for choice in choices]
    if isinstance(action, argparse._AppendAction):
        spec["repeatable"] = True
    return spec


def _by_name(flags: Mapping[str, Mapping[str, Any]]) -> dict[str, Flag]:
    by_name = {}
    for name, spec in flags.items():
        flag = Flag(
            name, spec["values"], spec.get("type"), tuple(spec.get("choices", ())), spec.get("repeatable", False)
        )
        by_name.update(dict.fromkeys([name, *spec.get("aliases", ())], flag))
    return by_name


def record(file: Path, version: str, commit: str, built_with: str) -> None:
    """Writes the installed slime's flags into `file` as those of `version`; other versions in it stay."""
    data = json.loads(file.read_text()) if file.exists() else {"versions": {}, "built_with": {}, "flags": {}}
    versions: dict[str, str] = data["versions"]
    by_version: dict[str, dict[str, Any]] = {version: installed_flags()}  # first: it counts where others differ
    by_version |= {
        other: {
            name: {key: value for key, value in spec.items() if key != "only"}
            for name, spec in data["flags"].items()
            if other in spec.get("only", versions)
        }
        for other in versions
        if other != version
    }
    versions[version] = commit
    data["built_with"][version] = built_with
    flags: dict[str, Any] = {}
    for other, specs in by_version.items():
        for name, spec in specs.items():
            flags.setdefault(name, spec)
            flags[name].setdefault("only", []).append(other)
    for spec in flags.values():
        if len(spec["only"]) == len(versions):
            del spec["only"]
    head = json.dumps({"versions": versions, "built_with": data["built_with"]}, indent=1).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(flags[name])}" for name in sorted(flags))
    file.write_text(f'{head},\n "flags": {{\n{lines}\n }}\n}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sat_slime.plugin.launch.flags", description=__doc__)
    parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="JSON file, made or updated")
    parser.add_argument("--version", default="installed", help="what to call this version, such as main or v0.3.1")
    parser.add_argument("--commit", default="unknown", help="slime's commit")
    parser.add_argument("--built-with", default="", help="commits and versions of Megatron-LM and SGLang")
    options = parser.parse_args()
    record(options.record, options.version, options.commit, options.built_with)


if __name__ == "__main__":
    main()
