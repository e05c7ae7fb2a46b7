"""The page of the command line: every command with its arguments and options."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from sat_slime.cli.app import whole_app

from .markdown import code, linked, page, table

INTRODUCTION = """\
Every command of `sat-slime` with its arguments and options, as `--help` shows them."""
TYPERS_OWN = {"install_completion", "show_completion"}
"""Options that every program of typer has."""


def commands() -> str:
    """The page."""
    return page("The command line", INTRODUCTION, *_command(whole_app(), "sat-slime", "##"))


def _command(command: Any, name: str, heading: str) -> Iterator[str]:
    """A command, then those below it; what typer makes of a function is one of click's, which it brings along."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and one.name not in TYPERS_OWN]
    below = getattr(command, "commands", {})
    yield f"{heading} {name}"
    yield _help(command.help)
    usage = [name, "[OPTIONS]" if options else "", *map(_argument, arguments), "COMMAND ..." if below else ""]
    yield f"```\n{' '.join(filter(None, usage))}\n```"
    rows = [(", ".join(map(code, _word(one).split("|"))), _meaning(one)) for one in arguments]
    rows += [(_option(one), _meaning(one)) for one in options]
    yield table(["argument or option", "meaning"], rows)
    for word, inner in below.items():
        yield from _command(inner, f"{name} {word}", "##" if name == "sat-slime" else "###")


def _help(text: str | None) -> str:
    """The help of a command, its examples as code."""
    paragraphs = re.split(r"\n\s*\n", _plain(text))
    grouped = itertools.groupby(paragraphs, lambda words: words.lstrip().startswith("sat-slime "))
    return "\n\n".join(_examples(group) if examples else "\n\n".join(group) for examples, group in grouped)


def _examples(commands: Iterator[str]) -> str:
    return "\n".join(["```", *(inspect.cleandoc(one) for one in commands), "```"])


def _plain(text: str | None) -> str:
    """Help without the marks of rich."""
    return Text.from_markup(inspect.cleandoc(text or "")).plain


def _argument(argument: Any) -> str:
    return _word(argument) if argument.required else f"[{_word(argument)}]"


def _option(option: Any) -> str:
    values = [""] if option.is_flag else [f" {word}" for word in _word(option).split("|")]
    return ", ".join(code(name + value) for name in (*option.opts, *option.secondary_opts) for value in values)


def _word(parameter: Any) -> str:
    """What stands for its value."""
    return (parameter.metavar or parameter.name.upper()).strip("[]")


def _meaning(parameter: Any) -> str:
    notes = _default(parameter) if parameter.param_type_name == "option" else []
    limits = getattr(parameter, "type", parameter)  # where older versions of typer have them
    low, high = getattr(limits, "min", None), getattr(limits, "max", None)
    notes += [f"at least {low:g}"] if low is not None else []
    notes += [f"at most {high:g}"] if high is not None else []
    meaning = " ".join(_plain(parameter.help).split())
    return linked(f"{meaning} ({'; '.join(notes)})" if notes else meaning, "../")


def _default(option: Any) -> list[str]:
    told = option.show_default and not option.is_flag and option.default not in (None, (), [])
    return [f"default: {code(option.default)}"] if told else []
