"""Runs slime's argument parser, validation included, in a process of its own, and says what it made of a command:

    python -m sat_slime.launch.parser_process ANSWER < WORDS

WORDS is a JSON list of the words behind the driver's name, ANSWER the JSON file to be written: slime's flags, the names
of its arguments, what it refuses, and what our driver refuses of what it accepts.

What slime, Megatron and SGLang refuse is an assertion or an exception, often with no more words than the expression
itself. So the statement that failed is read, for the names of the arguments in it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sat_slime.config.source import ConfigError
from sat_slime.cpu import without_gpu

ANY_COMMAND = ("--rollout-batch-size", "1")
"""No run; its parsers are wanted alone."""
KNOWN = {"--num-layers", "--rollout-batch-size", "--sglang-mem-fraction-static"}
"""Flags of slime's three parsers, by which one sees that each was caught."""
THEIRS = ("slime", "megatron", "sglang", "sglang_router")
"""Packages whose source tells what an exception is about."""
SET_FROM = {"world_size": ("actor_num_gpus_per_node", "actor_num_nodes")}
"""Arguments that slime computes in one function from others, and looks at in another."""


@dataclass(frozen=True)
class Refusal:
    """An exception of slime's parser, with the names of the arguments that it is about."""

    kind: str
    """The exception's class."""
    message: str
    where: str
    """File and line, from the package's folder on."""
    condition: str = ""
    """The expression that did not hold, or the statement that failed."""
    names: tuple[str, ...] = ()
    """Arguments in the message and the expression, as slime calls them."""
    around: tuple[str, ...] = ()
    """Arguments in the conditions under which the expression is looked at, the nearest first."""
    must: str = ""
    """What the expression asks for: `multiple` or `set`; empty: something else."""
    of: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Arguments of which it asks that: for `multiple` those whose product must be a multiple of the others' product."""


def answer(words: Sequence[str]) -> dict[str, Any]:
    """Return what slime makes of a command, as JSON can say it. Imports slime, SGLang and Megatron-LM."""
    without_gpu.prepare()
    without_gpu.was_asked = False
    with _caught_parsers() as parsers:
        refusal, faults = _parse(words, parsers)
        asks_for_gpu = without_gpu.was_asked
        if KNOWN - flags_of(parsers).keys():  # it refused the command before it had made all of its parsers
            with contextlib.suppress(Exception, SystemExit):
                _slimes_arguments(ANY_COMMAND)
    return {
        "flags": _all_flags(parsers),
        "arguments": _flags_by_argument(parsers),
        "refusal": dataclasses.asdict(refusal) if refusal else None,
        "faults": faults,
        "asks_for_gpu": asks_for_gpu,
    }


def installed_flags() -> dict[str, dict[str, Any]]:
    """Return the flags of the slime on the path, in the form in which they are recorded."""
    without_gpu.prepare()
    with _caught_parsers() as parsers, contextlib.suppress(Exception, SystemExit):
        _slimes_arguments(ANY_COMMAND)
    return _all_flags(parsers)


def _all_flags(parsers: Sequence[argparse.ArgumentParser]) -> dict[str, dict[str, Any]]:
    flags = flags_of(parsers)
    if missing := KNOWN - flags.keys():
        raise RuntimeError(f"slime's parsers have no {', '.join(sorted(missing))}: it parses in a way not known here")
    return flags


def _parse(words: Sequence[str], parsers: list[argparse.ArgumentParser]) -> tuple[Refusal | None, list[str]]:
    """Return what slime refuses of a command, and what our driver does of what slime accepts."""
    try:
        args = _slimes_arguments(words)
    except ImportError:
        raise  # it is no fault of the command
    except (Exception, SystemExit) as error:
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        given = {name for name, names in _flags_by_argument(parsers).items() if flags & set(names)}
        return read_refusal(error, given.__contains__), []
    from sat_slime.plugin.driver import take_over

    try:
        take_over(args)
    except ConfigError as error:
        return None, error.errors
    return None, []


def _slimes_arguments(words: Sequence[str]) -> argparse.Namespace:
    from sat_slime.plugin.inside.slime_processes import parse_arguments

    argv = sys.argv
    try:
        sys.argv = ["train_async.py", *words]
        return parse_arguments()[0]
    finally:
        sys.argv = argv


@contextlib.contextmanager
def _caught_parsers() -> Iterator[list[argparse.ArgumentParser]]:
    """Yields the parsers that slime builds while it parses, each caught when slime uses it. Their errors are raised,
    and not printed."""
    parsers: list[argparse.ArgumentParser] = []
    parse_known_args, show_error = argparse.ArgumentParser.parse_known_args, argparse.ArgumentParser.error

    def caught(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        parsers.append(self)
        return parse_known_args(self, *args, **kwargs)

    def raised(self: argparse.ArgumentParser, message: str) -> NoReturn:
        raise SystemExit(message)

    argparse.ArgumentParser.parse_known_args = caught  # type: ignore[method-assign]
    argparse.ArgumentParser.error = raised  # type: ignore[method-assign]
    try:
        yield parsers
    finally:
        argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign]
        argparse.ArgumentParser.error = show_error  # type: ignore[method-assign]


def flags_of(parsers: Sequence[argparse.ArgumentParser]) -> dict[str, dict[str, Any]]:
    """Return the parsers' flags, each by its first name."""
    flags = {}
    for parser in parsers:
        for action in parser._actions:
            if names := _names(action):
                flags[names[0]] = _spec(action, names)
    return dict(sorted(flags.items()))


def _flags_by_argument(parsers: Sequence[argparse.ArgumentParser]) -> dict[str, list[str]]:
    """Return the flags that set each of slime's arguments."""
    flags: dict[str, list[str]] = {}
    for parser in parsers:
        for action in parser._actions:
            flags.setdefault(action.dest, []).extend(_names(action))
    return {name: list(dict.fromkeys(names)) for name, names in flags.items() if names}


def _names(action: argparse.Action) -> list[str]:
    return [name for name in action.option_strings if name.startswith("--") and name != "--help"]


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


# ------------------------------------------------------------------------------------------- what a refusal is about


def read_refusal(error: BaseException, is_set: Callable[[str], bool]) -> Refusal:
    """Return what an exception of slime's parser says. is_set: whether the command sets an argument."""
    message = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
    frames = [frame for frame in traceback.walk_tb(error.__traceback__) if _package(frame[0].f_globals)]
    where = ""
    for frame, line in reversed(frames):
        file = frame.f_code.co_filename
        where = where or f"{_short(file, frame.f_globals)}:{line}"
        try:
            refusal = read_statement(Path(file).read_text(encoding="utf-8"), line, is_set)
        except (OSError, SyntaxError):
            continue
        names = dict.fromkeys([*_names_in(message), *refusal.names])
        if any(map(is_set, [*names, *refusal.around])):
            short = f"{_short(file, frame.f_globals)}:{line}"
            kind = type(error).__name__
            return dataclasses.replace(refusal, kind=kind, message=message, where=short, names=tuple(names))
    return Refusal(type(error).__name__, message, where, names=tuple(_names_in(message)))


def _package(module: Mapping[str, object]) -> str:
    package = str(module.get("__name__", "")).partition(".")[0]
    return package if package in THEIRS else ""


def _short(file: str, module: Mapping[str, object]) -> str:
    package = _package(module)
    return f"{package}{file.rpartition(f'/{package}')[2]}" if f"/{package}/" in file else Path(file).name


def _names_in(message: str) -> Iterator[str]:
    """Yield the words of a message that may be arguments, or environment variables: a flag with its dashes, or a word
    with an underscore in it."""
    for flag, word in re.findall(r"--([A-Za-z0-9][\w-]*)|\b([A-Za-z]\w*_\w+)\b", message):
        yield flag.replace("-", "_") or word


def read_statement(source: str, line: int, is_set: Callable[[str], bool]) -> Refusal:
    """Return what the statement at a line of slime's source asks for: its arguments and its form."""
    node: ast.AST = ast.parse(source)
    inside: list[ast.AST] = [node]
    while children := [child for child in _statements(node) if child.lineno <= line <= (child.end_lineno or 0)]:
        node = children[-1]
        inside.append(node)
    function = next((outer for outer in reversed(inside) if isinstance(outer, ast.FunctionDef)), inside[0])
    conditions = [outer.test for outer in reversed(inside) if isinstance(outer, ast.If)]
    asked: ast.AST = node
    if isinstance(node, ast.Assert):
        asked = node.test
    elif isinstance(node, ast.Raise) and conditions:
        asked = ast.UnaryOp(ast.Not(), conditions.pop(0))
    arguments = _Arguments(function, line, is_set)
    must, of = _form(asked, arguments)
    around = [name for condition in conditions for name in arguments.named(condition)]
    condition = " ".join(ast.unparse(asked).split())
    return Refusal("", "", "", condition, tuple(arguments.named(asked)), tuple(dict.fromkeys(around)), must, of)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, (ast.ExceptHandler, ast.withitem, ast.match_case)):
            yield from _statements(child)


class _Arguments:
    """Finds slime's arguments in expressions of one function; where one is not set by the command, also those that it
    is computed from."""

    def __init__(self, function: ast.AST, line: int, is_set: Callable[[str], bool]) -> None:
        self.is_set = is_set
        self.assigned: dict[str, list[ast.AST]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and node.lineno < line:
                for target in node.targets:
                    if name := argument_name(target) or (target.id if isinstance(target, ast.Name) else ""):
                        self.assigned.setdefault(name, []).append(node.value)

    def named(self, expression: ast.AST, depth: int = 3) -> list[str]:
        names: list[str] = []
        for node in _in_order(expression):
            argument = argument_name(node)
            name = argument or (node.id if isinstance(node, ast.Name) else "")
            names += [argument] if argument else []
            if depth and name and not (argument and self.is_set(argument)):
                names += SET_FROM.get(name, ())
                for value in self.assigned.get(name, ()):
                    names += self.named(value, depth - 1)
        return list(dict.fromkeys(names))

    def factors(self, expression: ast.AST, depth: int = 3) -> tuple[str, ...] | None:
        """Return the arguments whose product an expression is; None where it is no product."""
        if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Mult):
            left, right = self.factors(expression.left, depth), self.factors(expression.right, depth)
            return None if left is None or right is None else left + right
        argument = argument_name(expression)
        if argument and (self.is_set(argument) or argument not in (self.assigned.keys() | SET_FROM.keys())):
            return (argument,)
        name = argument or (expression.id if isinstance(expression, ast.Name) else "")
        if name in SET_FROM:
            return SET_FROM[name]
        return self.factors(self.assigned[name][-1], depth - 1) if depth and name in self.assigned else None


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


def argument_name(node: ast.AST) -> str:
    """Return the name of the argument that `args.NAME` or `getattr(args, "NAME", ...)` reads; empty for anything
    else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id.endswith("args"):
        return node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        owner, name = [*node.args, None, None][:2]
        if isinstance(owner, ast.Name) and owner.id.endswith("args") and isinstance(name, ast.Constant):
            return str(name.value)
    return ""


def _form(asked: ast.AST, arguments: _Arguments) -> tuple[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    nothing = "", ((), ())
    match asked:
        case ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), inner)):
            return _form(inner, arguments)
        case ast.UnaryOp(ast.Not(), ast.Compare(left, [ast.NotEq() | ast.Gt()], right)):
            return _form(ast.Compare(left, [ast.Eq()], right), arguments)
        case ast.UnaryOp(ast.Not(), ast.Compare(left, [ast.Is()], right)):
            return _form(ast.Compare(left, [ast.IsNot()], right), arguments)
        case ast.Compare(ast.BinOp(left, ast.Mod(), right), [ast.Eq()], [ast.Constant(0)]):
            product, divisor = arguments.factors(left), arguments.factors(right)
            return ("multiple", (product, divisor)) if product and divisor else nothing
        case ast.Compare(value, [ast.IsNot()], [ast.Constant(None)]) if name := argument_name(value):
            return "set", ((name,), ())
        case _ if name := argument_name(asked):
            return "set", ((name,), ())
    return nothing


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(answer(json.load(sys.stdin))), encoding="utf-8")
