"""Runs slime's argument parser, validation included, in a process of its own, and says what it made of a command:

    python -m sat_slime.cpu.slimes_parser ANSWER < WORDS

WORDS is a JSON list of the words behind the driver's name, ANSWER the JSON file to be written: slime's flags, what it
refuses, and what our driver refuses of what it accepts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import traceback
import types
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from sat_slime.config.source import ConfigError
from sat_slime.cpu import VARIABLE

ANY_COMMAND = ("--rollout-batch-size", "1")
"""No run; its parsers are wanted alone."""
KNOWN = {"--num-layers", "--rollout-batch-size", "--sglang-mem-fraction-static"}
"""Flags of slime's three parsers, by which one sees that each was caught."""


def answer(words: Sequence[str] = ANY_COMMAND) -> dict[str, Any]:
    """Return what slime makes of a command, as JSON can say it: `flags`, each with the argument that it sets;
    `refusal`, the exception of slime's parser with its statement, or None; `faults`, the lines of our driver. Imports
    slime, SGLang and Megatron-LM."""
    see_a_gpu()
    with _caught_parsers() as parsers:
        refusal, faults = _parse(words)
        if KNOWN - flags_of(parsers).keys():  # it refused the command before it had made all of its parsers
            with contextlib.suppress(Exception, SystemExit):
                _slimes_arguments(ANY_COMMAND)
    flags = flags_of(parsers)
    if missing := KNOWN - flags.keys():
        raise RuntimeError(f"slime's parsers have no {', '.join(sorted(missing))}: it parses in a way not known here")
    return {"flags": flags, "refusal": refusal, "faults": faults}


def see_a_gpu() -> None:
    """Has slime, SGLang and Megatron see a GPU in this process from now on, where there is none. A run on a CPU has
    patches of its own, with which its job parses too, so nothing is done for one."""
    if os.environ.get(VARIABLE) == "cpu":
        return
    warnings.simplefilter("ignore")  # about packages that are missing here
    import torch

    if torch.cuda.is_available():
        return
    import torch.utils.flop_counter  # it asks the real Triton for a class

    from sat_slime.rollout.sglang_on_cpu.absent import not_compiled, stand_in_for

    like_an_h100 = types.SimpleNamespace(major=9, minor=0, total_memory=80 * 2**30)
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: like_an_h100  # type: ignore[assignment]
    unneeded = ("triton", "IPython", "wandb", "sglang_router")
    absent = [name for name in unneeded if importlib.util.find_spec(name) is None]
    if "triton" in absent:
        # Megatron compiles its fusions as it is imported, and Inductor takes the stand-in for Triton.
        torch.compile = not_compiled
    # PyPI's torchvision is a CUDA build, which does not import beside a CPU torch.
    stand_in_for(*absent, *(["torchvision"] if torch.version.cuda is None else []))


def _parse(words: Sequence[str]) -> tuple[dict[str, str] | None, list[str]]:
    """Return what slime refuses of a command, and what our driver does of what slime accepts."""
    try:
        args = _slimes_arguments(words)
    except ImportError:
        raise  # it is no fault of the command
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        if isinstance(error, OSError) and error.filename is not None:
            message = f"{error.filename}: {error.strerror}"
        statements = [frame.line or "" for frame in traceback.extract_tb(error.__traceback__)]
        named = [line for line in statements if "args." in line]  # else the one that raised it
        statement = (named or statements)[-1]
        return {"kind": type(error).__name__, "message": message, "statement": statement}, []
    from sat_slime.plugin.driver import take_over

    try:
        take_over(args)
    except ConfigError as error:
        return None, error.errors
    return None, []


def _slimes_arguments(words: Sequence[str]) -> argparse.Namespace:
    from sat_slime.plugin.driver import parse_arguments

    with mock.patch.object(sys, "argv", ["train_async.py", *words]):
        return parse_arguments()[0]


@contextlib.contextmanager
def _caught_parsers() -> Iterator[list[argparse.ArgumentParser]]:
    """Yields the parsers that slime builds while it parses, each caught when slime uses it. Their errors are raised,
    and not printed."""
    parsers: list[argparse.ArgumentParser] = []
    parse_known_args = argparse.ArgumentParser.parse_known_args

    def caught(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        parsers.append(self)
        return parse_known_args(self, *args, **kwargs)

    def raised(self: argparse.ArgumentParser, message: str) -> NoReturn:
        raise SystemExit(message)

    with mock.patch.multiple(argparse.ArgumentParser, parse_known_args=caught, error=raised):
        yield parsers


def flags_of(parsers: Sequence[argparse.ArgumentParser]) -> dict[str, dict[str, Any]]:
    """Return the parsers' flags, each by its first name."""
    flags: dict[str, dict[str, Any]] = {}
    for action in (action for parser in parsers for action in parser._actions):
        names = [name for name in action.option_strings if name.startswith("--") and name != "--help"]
        if not names:
            continue
        spec: dict[str, Any] = {"values": 1 if action.nargs is None else action.nargs, "argument": action.dest}
        if names[1:]:
            spec["aliases"] = names[1:]
        if action.type in (int, float):
            spec["type"] = action.type.__name__
        if isinstance(action, argparse._AppendAction):
            spec["repeatable"] = True
        flags[names[0]] = spec
    return dict(sorted(flags.items()))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(answer(json.load(sys.stdin))), encoding="utf-8")
