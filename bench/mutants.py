"""Which faults would the tests not see? Draws mutants of a package folder and runs tests on each.

    python bench/mutants.py sat_slime/objective tests/objective [--sample 60] [--seed 0]

A mutant is one change of one expression: a comparison, an operator, a constant, a minimum for a maximum, a branch, a
`detach` left out. Modules are imported from the mutated tree in a forked child, which runs the tests with -x, so torch
and pytest are imported once. A survivor is printed with its line, before and after: either a test is missing, or the
change is none. Numbers with a seed are the same each time for the same source.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
COMPARISONS |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
OPERATORS |= {ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And}
NAMES = {"minimum": "maximum", "min": "max", "amin": "amax", "any": "all", "sum": "mean", "expm1": "exp"}
NAMES |= {after: before for before, after in NAMES.items()}
KILLED, SURVIVED = 1, 0


def mutate(node: Any) -> ast.AST | None:
    """Return the node changed, or None where it is of no kind that is changed."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[op, *_]) if type(op) in COMPARISONS:
            new.ops[0] = COMPARISONS[type(op)]()
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OPERATORS:
            new.op = OPERATORS[type(op)]()
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            new.value = not value
        case ast.Constant(value=int(value) | float(value)):
            new.value = value + 1
        case ast.IfExp(body=body, orelse=orelse):
            new.body, new.orelse = orelse, body
        case ast.If(test=test):
            new.test = ast.UnaryOp(ast.Not(), test)
        case ast.Call(func=ast.Attribute(attr="detach", value=value), args=[]):
            return value
        case ast.Call(func=ast.Attribute(attr=name)) if name in NAMES:
            new.func.attr = NAMES[name]
        case _:
            return None
    return new


def skipped(tree: ast.AST) -> set[int]:
    """Return the ids of nodes that no test is to see: messages of errors, annotations, and what only a type checker
    reads."""
    hidden: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, (ast.Raise, ast.Import, ast.ImportFrom)):
            parts = [node]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parts = [node.returns, *node.decorator_list]
        elif isinstance(node, (ast.arg, ast.AnnAssign)):
            parts = [node.annotation]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            parts = [node]
        hidden.update(id(child) for part in parts if part is not None for child in ast.walk(part))
    return hidden


def mutants(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (what is changed, the source) of every mutant of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = skipped(tree)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            values = value if isinstance(value, list) else [value]
            for index, node in enumerate(values):
                if not isinstance(node, ast.AST) or id(node) in hidden or (new := mutate(node)) is None:
                    continue
                ast.copy_location(new, node)
                ast.fix_missing_locations(new)
                _put(parent, name, value, index, new)
                what = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', '?')}: {_line(node)}  ->  {_line(new)}"
                yield what, ast.unparse(tree)
                _put(parent, name, value, index, node)


def _put(parent: ast.AST, name: str, value: Any, index: int, node: ast.AST) -> None:
    if isinstance(value, list):
        value[index] = node
    else:
        setattr(parent, name, node)


def _line(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0][:100]


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a mutated source."""

    def __init__(self, path: Path, source: str):
        self.name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        self.path, self.source = path, source

    def find_spec(self, name: str, *_: Any) -> Any:
        if name != self.name:
            return None
        package = [str(self.path.parent)] if self.path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, self.path, loader=self, submodule_search_locations=package)

    def exec_module(self, module: Any) -> None:
        exec(compile(self.source, str(self.path), "exec"), module.__dict__)


def run(tests: Sequence[str], finder: Mutated | None, limit_s: float) -> tuple[bool, float]:
    """Run the tests in a forked child; return whether all passed within the limit, and the seconds."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        code = KILLED
        with contextlib.suppress(BaseException):
            os.setsid()
            out = os.open(os.devnull, os.O_WRONLY)
            os.dup2(out, 1)
            os.dup2(out, 2)
            if finder is not None:
                sys.meta_path.insert(0, finder)
            import pytest

            passed = pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]) == 0
            code = SURVIVED if passed else KILLED
        os._exit(code)
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() - began > limit_s:  # an endless loop is seen too
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.05)
    return ended[1] == SURVIVED, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="folder or file of the package")
    parser.add_argument("tests", nargs="+", help="as for pytest: files, folders, -k, --deselect")
    parser.add_argument("--sample", type=int, default=60, help="mutants to draw; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a mutant, at least")
    options, more = parser.parse_known_args()
    os.chdir(ROOT)
    for module in ("torch", "numpy", "pytest", "hypothesis"):  # once for all children
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    package = options.package.resolve()
    files = sorted(package.rglob("*.py")) if package.is_dir() else [package]
    drawn = [(path, what, source) for path in files for what, source in mutants(path)]
    total = len(drawn)
    if options.sample:
        drawn = random.Random(options.seed).sample(drawn, min(options.sample, total))
    tests = [*options.tests, *more]
    passed, seconds = run(tests, None, 10 * options.limit)
    if not passed:
        sys.exit("the tests do not pass without a mutant: mend them first")
    print(f"{len(drawn)} of {total} mutants; the tests take {seconds:.0f} s without one", flush=True)
    survivors = 0
    for number, (path, what, source) in enumerate(drawn, 1):
        lives, _ = run(tests, Mutated(path, source), max(options.limit, 5 * seconds))
        survivors += lives
        if lives:
            print(f"survived: {what}", flush=True)
        if number % 10 == 0:
            print(f"{number - survivors} of {number} killed", flush=True)
    print(f"{len(drawn) - survivors} of {len(drawn)} killed")


if __name__ == "__main__":
    main()
