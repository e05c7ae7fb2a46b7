"""Asks slime's own argument parser, where slime is installed, whether it takes a run's command.

The parser runs in a process of its own, on the exact command, with the run's environment. Where files of the run are
not there yet, it is asked without them: the plugin's settings are written to a temporary folder, and a checkpoint that
is missing, or is another model's, is left to the check of this machine, which names it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sat_slime.config.finding import Finding, fail, ok, warn
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.command import (
    FIXED,
    GOVERNED,
    Argument,
    environment,
    plugin_settings_text,
    slime_arguments,
)
from sat_slime.launch.flags import KnownFlags, flags_by_name, recorded_flags
from sat_slime.launch.hf_checkpoint import hf_findings
from sat_slime.launch.parser_process import Refusal

TIMEOUT_S = 200
"""Seconds that slime's parser may take: it imports torch, SGLang and Megatron."""
PACKAGE = Path(__file__).parents[2]
"""The folder that holds this package."""
SAYS_WHAT_IS_WRONG = ("AssertionError", "ValueError", "SystemExit", "FileNotFoundError")
"""Exceptions whose message says what is wrong without their name."""
MOST_KEYS, MOST_CHARACTERS = 4, 30
"""How many settings a line names, and how long a value may be to be shown."""


@dataclass(frozen=True)
class Origin:
    """The setting that one of slime's arguments comes from."""

    key: str
    """The dotted key; `slime.FLAG` where the argument is not set, and could be."""
    value: str | None = None
    """The setting's value as shown to a person; None: not set, or too long."""
    is_set: bool = True

    @property
    def is_own(self) -> bool:
        """True where the user names a flag or a variable of slime's, which the command can do without."""
        return self.key.startswith(("slime.", "cluster.env."))


@dataclass(frozen=True)
class Answer:
    """An answer of slime to the question whether it takes a run's command."""

    known: KnownFlags
    """Its flags, or the recorded ones where it could not be asked."""
    refusals: tuple[str, ...] = ()
    """A line for what slime, or our driver after it, refuses."""
    asked: bool = False
    """Whether slime's parser ran on the command."""
    failure: str = ""
    """Why it did not, though slime is there."""
    asks_for_gpu: bool = False
    """Whether slime asks for the GPU of the machine that parses, and there is none here."""

    def findings(self) -> Iterator[Finding]:
        """Yield what was asked, for a run whose settings have no fault."""
        if self.failure:
            yield warn("flags", f"slime's parser could not be asked ({self.failure}): all in {self.known.source}")
        elif self.asked:
            yield ok("flags", f"taken by the parser of {self.known.source}")
        else:
            yield ok("flags", f"all in {self.known.source}; slime, whose parser would be asked, is not here")

    def findings_on_head_node(self) -> Iterator[Finding]:
        """Yield the same where the job's driver would run this parser."""
        if self.failure:
            yield fail("flags", f"slime's parser fails here as it would for the job: {self.failure}")
        else:
            yield from self.findings()
        if self.asks_for_gpu:
            yield fail(
                "head node",
                "slime's parser asks for its GPU, and the head node has none: start Ray's head on a node with GPUs",
            )


def ask_slime(config: SlimeConfig, run_dir: Path) -> Answer:
    """Return what the slime that is installed, or lies in `cluster.slime_dir`, says of a run's command. It takes some
    seconds.

    Nothing is written but in a temporary folder.
    """
    slime_dir = config.cluster.slime_dir
    is_checkout = (Path(slime_dir) / "slime").is_dir()
    if not (is_checkout or slime_is_installed()):
        return Answer(recorded_flags())
    arguments = slime_arguments(config, run_dir)
    with tempfile.TemporaryDirectory() as scratch:
        answer, failure = _run_parser(
            list(asked_words(config, run_dir, arguments, Path(scratch))), _environment(config, run_dir)
        )
    if answer is None:
        return Answer(recorded_flags(), failure=failure)
    known = KnownFlags(f"slime {slime_dir if is_checkout else 'as installed'}", flags_by_name(answer["flags"]))
    refusals = tuple(refusal_lines(config, arguments, answer))
    return Answer(known, refusals, asked=True, asks_for_gpu=answer["asks_for_gpu"])


def slime_is_installed() -> bool:
    """Return whether THUDM's slime can be imported: PyPI has another package slime, which lacks this module."""
    try:
        return importlib.util.find_spec("slime.backends") is not None
    except ImportError:
        return False


def asked_words(config: SlimeConfig, run_dir: Path, arguments: Sequence[Argument], scratch: Path) -> Iterator[str]:
    """Yield the command's words, with stand-ins in `scratch` for what may not be there."""
    settings, weights = scratch / "sat_slime.yaml", scratch / "weights"
    settings.write_text(plugin_settings_text(config, run_dir), encoding="utf-8")
    weights.mkdir()
    fits = any(finding.what == "model" and finding.mark == "OK" for finding in hf_findings(config))
    stand_ins = {"custom-config-path": str(settings)}
    if config.model.megatron_checkpoint and not Path(config.model.megatron_checkpoint).exists():
        stand_ins["ref-load"] = str(weights)
    for argument in arguments:
        if argument.name in stand_ins:
            yield from (f"--{argument.name}", stand_ins[argument.name])
        elif fits or argument.name != "hf-checkpoint":
            yield from argument.words()


def _environment(config: SlimeConfig, run_dir: Path) -> dict[str, str]:
    env = environment(config, run_dir)
    folders = (env["PYTHONPATH"], os.environ.get("PYTHONPATH", ""), str(PACKAGE))
    return {**os.environ, **env, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def _run_parser(words: Sequence[str], env: Mapping[str, str]) -> tuple[dict[str, Any] | None, str]:
    """Return the answer of the parser's process; or None, and the reason."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "answer.json"
        try:
            subprocess.run(
                [sys.executable, "-m", "sat_slime.launch.parser_process", str(file)],
                input=json.dumps(words),
                env=env,
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=True,
            )
            return json.loads(file.read_text(encoding="utf-8")), ""
        except subprocess.TimeoutExpired:
            return None, f"no answer within {TIMEOUT_S} seconds"
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            return None, lines[-1]


# ------------------------------------------------------------------------------------------------------- the lines


def refusal_lines(config: SlimeConfig, arguments: Sequence[Argument], answer: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for what slime refuses, and one for each fault that our driver found, named by our settings."""
    origins = Origins(config, arguments, answer["arguments"])
    if answer["refusal"]:
        yield refusal_line(_refusal(answer["refusal"]), origins)
    for fault in answer["faults"]:
        # The driver knows the plugin's section as slime's file has it, and slime's flags.
        line = fault.replace("sat_slime.", "")
        flag = line.partition(" ")[0]
        origin = origins(flag[2:].replace("-", "_")) if flag.startswith("--") else None
        yield f"{origin.key}: {line}" if origin else line


def _refusal(values: Mapping[str, Any]) -> Refusal:
    first, second = values["of"]
    lists = {"names": tuple(values["names"]), "around": tuple(values["around"]), "of": (tuple(first), tuple(second))}
    return Refusal(**{**values, **lists})


@dataclass(frozen=True)
class Origins:
    """Finds the setting that one of slime's arguments, or an environment variable of the run, comes from."""

    config: SlimeConfig
    command: Sequence[Argument]
    flags: Mapping[str, Sequence[str]]
    """The flags that set each argument."""

    def __call__(self, name: str) -> Origin | None:
        if name in self.config.cluster.env:
            return Origin(f"cluster.env.{name}", shown(self.config.cluster.env[name]))
        flags = self.flags.get(name)
        if not flags:
            return None
        for argument in self.command:
            if f"--{argument.name}" in flags:
                return None if argument.key == FIXED else Origin(argument.key, self._value(argument.key))
        free = flags[0].removeprefix("--")
        key = GOVERNED.get(free)
        return Origin(key, self._value(key), False) if key else Origin(f"slime.{free}", None, False)

    def _value(self, key: str) -> str | None:
        value: Any = self.config
        for part in key.split("."):
            inside = isinstance(value, Mapping)
            if not (part in value if inside else hasattr(value, part)):
                return None
            value = value[part] if inside else getattr(value, part)
        return shown(value)


def refusal_line(refusal: Refusal, origin: Callable[[str], Origin | None]) -> str:
    """Return one line that names the settings that a refusal is about, with slime's words and what is known of the
    remedy.

    origin: the setting of one of slime's arguments, or of an environment variable; None for what is neither, and for
    what no setting gives.
    """
    about, around = (_distinct(map(origin, names)) for names in (refusal.names, refusal.around))
    given = [setting for setting in around if setting.is_set]
    named = [setting for setting in about if setting.is_set] or given or about
    own = [setting for setting in named if setting.is_own] or [setting for setting in given if setting.is_own][:1]
    *others, last = [_in_words(setting) for setting in _distinct([*named[:MOST_KEYS], *own])] or [""]
    subject = f"{', '.join(others)} and {last}" if others else last
    location = "" if named else f" ({refusal.where})" if refusal.where else ""
    said = f"slime refuses the command: {_reason(refusal)}{location}{_remedy(refusal, origin, own)}"
    return f"{subject}: {said}" if subject else said


def _distinct(origins: Iterable[Origin | None]) -> list[Origin]:
    return list({origin.key: origin for origin in origins if origin is not None}.values())


def _in_words(origin: Origin) -> str:
    if origin.value is not None:
        return f"{origin.key} is {origin.value}"
    return origin.key if origin.is_set else f"{origin.key} is not set"


def _reason(refusal: Refusal) -> str:
    if refusal.message:
        said = refusal.message.rstrip(".")
        return said if refusal.kind in SAYS_WHAT_IS_WRONG else f"{refusal.kind}: {said}"
    if refusal.kind == "AssertionError":
        return f"it must be that {refusal.condition}"
    return f"{refusal.kind} in {refusal.condition}" if refusal.condition else refusal.kind


def _remedy(refusal: Refusal, origin: Callable[[str], Origin | None], own: Sequence[Origin]) -> str:
    first, second = ([origin(name) for name in names] for names in refusal.of)
    remedies = []
    if refusal.must == "multiple" and all(setting is not None and setting.is_set for setting in [*first, *second]):
        remedies.append(f"make {_product(first)} a multiple of {_product(second)}")
    elif refusal.must == "set" and first[0] is not None and first[0].is_own and not first[0].is_set:
        remedies.append(f"set {first[0].key}")
    if own:  # slime runs without what is passed on to it by the flag's name
        remedies.append(f"leave {own[-1].key} out")
    return f": {', or '.join(remedies)}" if remedies else ""


def _product(origins: Sequence[Origin | None]) -> str:
    return " x ".join(origin.key for origin in _distinct(origins))


def shown(value: object) -> str | None:
    """Return a setting's value as a line shows it; None where it is too long for one."""
    text = str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
    return text if len(text) <= MOST_CHARACTERS else None
