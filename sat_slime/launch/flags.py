"""What is known of slime's flags, and what slime says of a run's command: of the slime that is installed, whose own
parser is asked, else of a recorded list.

slime ignores an unknown flag without a word, and its SGLang parser takes an abbreviation for a flag; so every flag of a
command is held against this list before it is sent. `slime_flags.json` has several versions' flags; `built_with` says
how each was read, and scripts/record_flags.py records one anew.

The parser runs in a process of its own, on the exact command, with the run's environment. Where files of the run are
not there yet, it is asked without them: the plugin's settings are written to a temporary folder, and a checkpoint that
is missing, or is another model's, is left to the check of this machine, which names it.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sat_slime.config.finding import Finding, fail, ok, warn
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.command import (
    FIXED,
    GOVERNED,
    PLUGIN_FILE,
    REFUSED,
    Argument,
    environment,
    governed_flags,
    plugin_settings_text,
    run_folder,
    slime_arguments,
)
from sat_slime.launch.hf_checkpoint import hf_findings
from sat_slime.launch.small_run import PACKAGE

RECORDED = Path(__file__).with_name("slime_flags.json")
TIMEOUT_S = 200
"""Seconds that slime's parser may take: it imports torch, SGLang and Megatron."""
SAYS_WHAT_IS_WRONG = ("AssertionError", "ValueError", "SystemExit", "FileNotFoundError")
"""Exceptions whose message says what is wrong without their name."""
MOST_KEYS, MOST_CHARACTERS = 4, 30
"""How many settings a line names, and how long a value may be to be shown."""


@dataclass(frozen=True)
class Slime:
    """The flags of a slime, and what it said of a command if it was asked."""

    source: str
    """Which slime it is, for messages."""
    flags: Mapping[str, Mapping[str, Any]]
    """Each flag by every name that it has, with dashes. `values`: how many follow it, a number, or `?` (none or one),
    `*` (any number), `+` (one or more); `repeatable`: whether it keeps both values when it is given twice, where any
    other keeps the last one; `type`: int or float; `name`: the first of its names."""
    refusals: tuple[str, ...] = ()
    """A line for what slime, or our driver after it, refuses."""
    failure: str | None = None
    """Why slime's parser, though it is there, did not run on the command; empty where it did."""

    def findings(self, on_head_node: bool = False) -> Iterator[Finding]:
        """Yield what was asked, for sound settings. on_head_node: the job's driver would run this parser."""
        if self.failure and on_head_node:
            told = f"slime's parser fails here as it would for the job: {self.failure}"
            is_missing = "No module named" in self.failure
            yield fail("flags", f"{told}: scripts/get-slime.sh installs what slime imports" if is_missing else told)
        elif self.failure:
            yield warn("flags", f"slime's parser could not be asked ({self.failure}): all in {self.source}")
        elif self.failure is not None:
            yield ok("flags", f"taken by the parser of {self.source}")
        else:
            yield ok("flags", f"all in {self.source}; slime, whose parser would be asked, is not here")


def _by_name(flags: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {each: {**spec, "name": name} for name, spec in flags.items() for each in (name, *spec.get("aliases", ()))}


@functools.cache
def recorded(version: str | None = None) -> Slime:
    """Return one recorded version of slime, or all versions together where none is named."""
    data = json.loads(RECORDED.read_text())
    versions = data["versions"]
    flags = {
        name: spec for name, spec in data["flags"].items() if version is None or version in spec.get("only", versions)
    }
    *others, last = (f"{name} ({versions[name][:9]})" for name in ([version] if version else versions))
    source = " and ".join([*([", ".join(others)] if others else []), last])
    return Slime(f"slime {source} as recorded", _by_name(flags))


def flag_errors(config: SlimeConfig, slime: Slime | None = None) -> list[str]:
    """Return a line for every flag of the run that slime would not take as it is meant, with the setting that it comes
    from: one that another setting governs, that is unknown, abbreviated or repeated, or has another number of values
    than it takes. slime: default: the recorded one."""
    slime = slime or recorded()
    governed, errors = governed_flags(config), {}
    for name in config.slime:
        repeatable = slime.flags.get(f"--{name}", {}).get("repeatable")
        if name in REFUSED:
            errors[name] = f"{REFUSED[name]}: leave this out"
        elif governed.get(name):
            errors[name] = f"--{name} follows from {governed[name]}: set that, and leave this out"
        elif name in governed and not repeatable:
            errors[name] = f"the command always has --{name}: leave this out"
    judged = {f"slime.{name}" for name in errors}
    arguments = [each for each in slime_arguments(config, run_folder(config)) if each.key not in judged]
    return [*(f"slime.{name}: {error}" for name, error in errors.items()), *unknown_flags(arguments, slime, governed)]


def unknown_flags(arguments: Sequence[Argument], slime: Slime, governed: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each fault of a command's flags by a slime's own. governed: the setting that alone gives it."""
    seen: set[str] = set()
    for argument in arguments:
        name, *values = argument.words()
        key, flag, shown = argument.key or name, slime.flags.get(name), " ".join(values)
        if flag is None:
            yield f"{key}: there is no flag {name} in {slime.source}{_nearest(name, slime, governed)}"
            continue
        if flag["name"] in seen and not flag.get("repeatable"):
            again = "is given twice" if name == flag["name"] else f"is {flag['name']}, which the command has already"
            yield f"{key}: {name} {again}, and slime takes the last: leave one of them out"
        seen.add(flag["name"])
        wanted = flag["values"]
        if isinstance(wanted, int) and len(values) != wanted:
            takes = f"{wanted} value(s)" if wanted else "no value"
            remedy = "" if wanted else ": set it to true"
            yield f"{key}: {name} takes {takes}, " + (f"not {shown!r}{remedy}" if values else "and has none")
        elif (wanted == "+" and not values) or (wanted == "?" and len(values) > 1):
            yield f"{key}: {name} takes {'one value or more' if wanted == '+' else 'at most one value'}, not {shown!r}"
        elif not all(_is_a(flag.get("type"), value) for value in values):
            yield f"{key}: {name} takes {'a whole number' if flag['type'] == 'int' else 'a number'}, not {shown!r}"


def _is_a(kind: str | None, value: str) -> bool:
    try:
        return kind is None or {"int": int, "float": float}[kind](value) is not None
    except ValueError:
        return False


def _nearest(name: str, slime: Slime, governed: Mapping[str, str]) -> str:
    longer = sorted((full for full in slime.flags if full.startswith(name)), key=len)
    close = longer[:1] or difflib.get_close_matches(name, slime.flags, n=1, cutoff=0.6)
    if not close:
        return ""
    key = governed.get(close[0].removeprefix("--"))
    what = "Flags are written in full" if key is None else "The command has it: leave this out"
    what = f"That follows from {key}: set that, and leave this out" if key else what
    return f"; did you mean {close[0]}? {what}"


def ask_slime(config: SlimeConfig, run_dir: Path) -> Slime:
    """Return what the slime that is installed, or lies in `cluster.slime_dir`, says of a run's command; the recorded
    one where it cannot be asked. It takes some seconds. Nothing is written but in a temporary folder."""
    slime_dir = config.cluster.slime_dir
    is_checkout = os.path.isdir(Path(slime_dir) / "slime")
    if not (is_checkout or slime_is_installed()):
        return recorded()
    arguments, env = slime_arguments(config, run_dir), environment(config, run_dir)
    folders = (env["PYTHONPATH"], os.environ.get("PYTHONPATH", ""), str(PACKAGE.parent))
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "answer.json"
        try:
            subprocess.run(
                [sys.executable, "-m", "sat_slime.cpu.slimes_parser", str(file)],
                input=json.dumps(list(asked_words(config, run_dir, arguments, Path(scratch)))),
                env={**os.environ, **env, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=True,
            )
            answer = json.loads(file.read_text(encoding="utf-8"))
        except subprocess.TimeoutExpired:
            return replace(recorded(), failure=f"no answer within {TIMEOUT_S} seconds")
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            lines = ((getattr(error, "stderr", None) or "").strip() or str(error)).splitlines()
            return replace(recorded(), failure=lines[-1])
    source = f"slime {slime_dir if is_checkout else 'as installed'}"
    return Slime(source, _by_name(answer["flags"]), tuple(refusal_lines(config, arguments, answer)), failure="")


def parser_findings(config: SlimeConfig, run_folder: Path) -> Iterator[Finding]:
    """Yield what slime's parser says on the machine on which the job's driver will run."""
    slime = ask_slime(config, run_folder)
    errors = flag_errors(config, slime) or slime.refusals
    yield from [fail("flags", error) for error in errors] or slime.findings(on_head_node=True)


def slime_is_installed() -> bool:
    """Return whether THUDM's slime can be imported: PyPI has another package slime, which lacks this module."""
    try:
        return importlib.util.find_spec("slime.backends") is not None
    except ImportError:
        return False


def asked_words(config: SlimeConfig, run_dir: Path, arguments: Sequence[Argument], scratch: Path) -> Iterator[str]:
    """Yield the command's words, with stand-ins in `scratch` for what may not be there."""
    settings, weights = scratch / PLUGIN_FILE, scratch / "weights"
    settings.write_text(plugin_settings_text(config, run_dir), encoding="utf-8")
    weights.mkdir()
    fits = any(finding.what == "model" and finding.mark == "OK" for finding in hf_findings(config))
    stand_ins = {"custom-config-path": str(settings)}
    if config.model.megatron_checkpoint and not os.path.exists(config.model.megatron_checkpoint):
        stand_ins["ref-load"] = str(weights)
    for argument in arguments:
        if argument.name in stand_ins:
            yield from (f"--{argument.name}", stand_ins[argument.name])
        elif fits or argument.name != "hf-checkpoint":
            yield from argument.words()


NAMED = re.compile(r"--([A-Za-z0-9][\w-]*)|\b([A-Za-z]\w*_\w+)|\bargs\.(\w+)")
"""How a message or a statement of slime's names an argument: a flag, a word with an underscore, an attribute."""


def refusal_lines(config: SlimeConfig, arguments: Sequence[Argument], answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for what slime refuses, with the settings that it names, and for all that our driver found."""
    given = {argument.name: argument.key for argument in arguments}
    keys = {name: f"cluster.env.{name}" for name in config.cluster.env}
    for flag, spec in answer["flags"].items():
        names = [name.removeprefix("--") for name in (flag, *spec.get("aliases", ()))]
        own = next((given[name] for name in names if name in given), None)
        if own != FIXED and (own or spec["argument"] not in keys):
            keys[spec["argument"]] = own or GOVERNED.get(names[0], f"slime.{names[0]}").partition(" ")[0]
    if refusal := answer["refusal"]:
        said = refusal["message"].rstrip(".") or refusal["statement"]
        if refusal["kind"] not in SAYS_WHAT_IS_WRONG:
            said = f"{refusal['kind']}: {said}"
        words = NAMED.findall(f"{said} {refusal['statement']}")
        named = dict.fromkeys(keys.get("".join(word).replace("-", "_"), "") for word in words)
        shown = ", ".join(_with_value(config, key) for key in [*filter(None, named)][:MOST_KEYS])
        yield f"{shown}: slime refuses the command: {said}" if shown else f"slime refuses the command: {said}"
    for fault in answer["faults"]:
        # The driver knows the plugin's section as slime's file has it, and slime's flags.
        line = fault.replace("sat_slime.", "")
        key = keys.get(line.partition(" ")[0].removeprefix("--").replace("-", "_")) if line.startswith("--") else None
        yield f"{key}: {line}" if key else line


def _with_value(config: SlimeConfig, key: str) -> str:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    if value is None:
        return f"{key} is not set"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{key} is {text}" if len(text) <= MOST_CHARACTERS else key
