"""Asks slime's own argument parser, where slime is installed, whether it takes a run's command.

The parser runs in a process of its own, on the exact command, with the run's environment. Where files of the run are
not there yet, it is asked without them: the plugin's settings are written to a temporary folder, and a checkpoint that
is missing, or is another model's, is left to the check of this machine, which names it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sat_slime.config.finding import Finding, fail, ok, warn
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.command import FIXED, GOVERNED, Argument, environment, plugin_settings_text, slime_arguments
from sat_slime.launch.flags import KnownFlags, flags_by_name, recorded_flags
from sat_slime.launch.hf_checkpoint import hf_findings

TIMEOUT_S = 200
"""Seconds that slime's parser may take: it imports torch, SGLang and Megatron."""
PACKAGE = Path(__file__).parents[2]
"""The folder that holds this package."""
SAYS_WHAT_IS_WRONG = ("AssertionError", "ValueError", "SystemExit", "FileNotFoundError")
"""Exceptions whose message says what is wrong without their name."""
MOST_KEYS, MOST_CHARACTERS = 4, 30
"""How many settings a line names, and how long a value may be to be shown."""


@dataclass(frozen=True)
class Answer:
    """An answer of slime to the question whether it takes a run's command."""

    known: KnownFlags
    """Its flags, or the recorded ones where it could not be asked."""
    refusals: tuple[str, ...] = ()
    """A line for what slime, or our driver after it, refuses."""
    failure: str | None = None
    """Why slime's parser, though it is there, did not run on the command; empty where it did."""

    def findings(self, on_head_node: bool = False) -> Iterator[Finding]:
        """Yield what was asked, for a run whose settings have no fault. on_head_node: the job's driver would run this
        parser."""
        if self.failure and on_head_node:
            yield fail("flags", f"slime's parser fails here as it would for the job: {self.failure}")
        elif self.failure:
            yield warn("flags", f"slime's parser could not be asked ({self.failure}): all in {self.known.source}")
        elif self.failure is not None:
            yield ok("flags", f"taken by the parser of {self.known.source}")
        else:
            yield ok("flags", f"all in {self.known.source}; slime, whose parser would be asked, is not here")


def ask_slime(config: SlimeConfig, run_dir: Path) -> Answer:
    """Return what the slime that is installed, or lies in `cluster.slime_dir`, says of a run's command. It takes some
    seconds.

    Nothing is written but in a temporary folder.
    """
    slime_dir = config.cluster.slime_dir
    is_checkout = (Path(slime_dir) / "slime").is_dir()
    if not (is_checkout or slime_is_installed()):
        return Answer(recorded_flags())
    arguments, env = slime_arguments(config, run_dir), environment(config, run_dir)
    folders = (env["PYTHONPATH"], os.environ.get("PYTHONPATH", ""), str(PACKAGE))
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
            return Answer(recorded_flags(), failure=f"no answer within {TIMEOUT_S} seconds")
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            return Answer(recorded_flags(), failure=lines[-1])
    known = KnownFlags(f"slime {slime_dir if is_checkout else 'as installed'}", flags_by_name(answer["flags"]))
    return Answer(known, tuple(refusal_lines(config, arguments, answer)), failure="")


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


# ------------------------------------------------------------------------------------------------------- the lines

NAMED = re.compile(r"--([A-Za-z0-9][\w-]*)|\b([A-Za-z]\w*_\w+)|\bargs\.(\w+)")
"""How a message or a statement of slime's names an argument: a flag, a word with an underscore, an attribute."""


def refusal_lines(config: SlimeConfig, arguments: Sequence[Argument], answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for what slime refuses, with the settings that it names, and one for each fault that our driver
    found."""
    given = {argument.name: argument.key for argument in arguments}
    keys = {name: f"cluster.env.{name}" for name in config.cluster.env}
    for flag, spec in answer["flags"].items():
        names = [name.removeprefix("--") for name in (flag, *spec.get("aliases", ()))]
        own = next((given[name] for name in names if name in given), None)
        if own != FIXED and (own or spec["argument"] not in keys):
            keys[spec["argument"]] = own or GOVERNED.get(names[0]) or f"slime.{names[0]}"
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
