"""Reads a refusal of slime's argument parser, and says which of our settings it is about.

What slime, Megatron and SGLang refuse is an assertion or an exception, often with no more words than the expression
itself. The names in it are those of arguments; an argument comes from a flag, and a flag from a setting.
"""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

THEIRS = ("slime", "megatron", "sglang", "sglang_router")
"""Packages whose source tells what an exception is about."""
SET_FROM = {"world_size": ("actor_num_gpus_per_node", "actor_num_nodes")}
"""Arguments that slime computes in one function from others, and looks at in another."""
TOLD_IN_WORDS = ("AssertionError", "ValueError", "SystemExit", "FileNotFoundError")
"""Exceptions whose message says what is wrong without their name."""
MOST_KEYS, MOST_CHARACTERS = 4, 30
"""How many settings a line names, and how long a value may be to be shown."""


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


@dataclass(frozen=True)
class Origin:
    """The setting that one of slime's arguments comes from."""

    key: str
    """The dotted key; `extra_args.FLAG` where the argument is not set, and could be."""
    value: str | None = None
    """The setting's value as shown to a person; None: not set, or too long."""
    is_set: bool = True

    @property
    def is_own(self) -> bool:
        """Whether the user names a flag or a variable of slime's, which the command can do without."""
        return self.key.startswith(("extra_args.", "cluster.env."))


# ------------------------------------------------------------------------------------------- in the parser's process


def read_refusal(error: BaseException, is_set: Callable[[str], bool]) -> Refusal:
    """What an exception of slime's parser says. is_set: whether the command sets an argument."""
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
            return Refusal(
                type(error).__name__,
                message,
                short,
                refusal.condition,
                tuple(names),
                refusal.around,
                refusal.must,
                refusal.of,
            )
    return Refusal(type(error).__name__, message, where, names=tuple(_names_in(message)))


def _package(module: Mapping[str, object]) -> str:
    package = str(module.get("__name__", "")).partition(".")[0]
    return package if package in THEIRS else ""


def _short(file: str, module: Mapping[str, object]) -> str:
    package = _package(module)
    return f"{package}{file.rpartition(f'/{package}')[2]}" if f"/{package}/" in file else Path(file).name


def _names_in(message: str) -> Iterator[str]:
    """Words of a message that may be arguments, or environment variables: a flag with its dashes, or a word with an
    underscore in it."""
    for flag, word in re.findall(r"--([A-Za-z0-9][\w-]*)|\b([A-Za-z]\w*_\w+)\b", message):
        yield flag.replace("-", "_") or word


def read_statement(source: str, line: int, is_set: Callable[[str], bool]) -> Refusal:
    """What the statement at a line of slime's source asks for: its arguments and its form."""
    node: ast.AST = ast.parse(source)
    inside: list[ast.AST] = [node]
    while children := [child for child in _statements(node) if child.lineno <= line <= (child.end_lineno or 0)]:
        node = children[-1]
        inside.append(node)
    function = next((one for one in reversed(inside) if isinstance(one, ast.FunctionDef)), inside[0])
    conditions = [one.test for one in reversed(inside) if isinstance(one, ast.If)]
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
        """The arguments whose product an expression is; None where it is no product."""
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
    """The name of the argument that `args.NAME` or `getattr(args, "NAME", ...)` reads; empty for anything else."""
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


# ----------------------------------------------------------------------------------------------------- to a setting


def refusal_line(refusal: Refusal, origin: Callable[[str], Origin | None]) -> str:
    """One line that names the settings that a refusal is about, with slime's words and what is known of the remedy.

    origin: the setting of one of slime's arguments, or of an environment variable; None for what is neither, and for
    what no setting gives.
    """
    about, around = (_distinct(map(origin, names)) for names in (refusal.names, refusal.around))
    given = [one for one in around if one.is_set]
    named = [one for one in about if one.is_set] or given or about
    own = [one for one in named if one.is_own] or [one for one in given if one.is_own][:1]
    *others, last = [_told(one) for one in _distinct([*named[:MOST_KEYS], *own])] or [""]
    subject = f"{', '.join(others)} and {last}" if others else last
    place = "" if named else f" ({refusal.where})" if refusal.where else ""
    said = f"slime refuses the command: {_reason(refusal)}{place}{_remedy(refusal, origin, own)}"
    return f"{subject}: {said}" if subject else said


def _distinct(origins: Iterable[Origin | None]) -> list[Origin]:
    return list({one.key: one for one in origins if one is not None}.values())


def _told(origin: Origin) -> str:
    if origin.value is not None:
        return f"{origin.key} is {origin.value}"
    return origin.key if origin.is_set else f"{origin.key} is not set"


def _reason(refusal: Refusal) -> str:
    if refusal.message:
        said = refusal.message.rstrip(".")
        return said if refusal.kind in TOLD_IN_WORDS else f"{refusal.kind}: {said}"
    if refusal.kind == "AssertionError":
        return f"it must be that {refusal.condition}"
    return f"{refusal.kind} in {refusal.condition}" if refusal.condition else refusal.kind


def _remedy(refusal: Refusal, origin: Callable[[str], Origin | None], own: Sequence[Origin]) -> str:
    first, second = ([origin(name) for name in names] for names in refusal.of)
    remedies = []
    if refusal.must == "multiple" and all(one is not None and one.is_set for one in [*first, *second]):
        remedies.append(f"make {_product(first)} a multiple of {_product(second)}")
    elif refusal.must == "set" and first[0] is not None and first[0].is_own and not first[0].is_set:
        remedies.append(f"set {first[0].key}")
    if own:  # slime runs without what is passed on to it by the flag's name
        remedies.append(f"leave {own[-1].key} out")
    return f": {', or '.join(remedies)}" if remedies else ""


def _product(origins: Sequence[Origin | None]) -> str:
    return " x ".join(one.key for one in _distinct(origins))


def shown(value: object) -> str | None:
    """A setting's value as a line shows it; None where it is too long for one."""
    text = str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
    return text if len(text) <= MOST_CHARACTERS else None
