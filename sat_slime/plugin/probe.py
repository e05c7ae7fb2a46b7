"""The probe says whether the plugin knows this slime.

It only reads slime's source files, so that a launcher without a GPU can ask too. slime has no version to ask for: its
package says nothing and setup.py lags behind. So the probe compares the names that the plugin touches
(plugin/slime_names.py): functions with their parameters, and places in slime that must call what is wrapped.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sat_slime.plugin.slime_names import BY_INTERVAL, KNOWN, NAMES, SINCE_V031, Form, Name

_TRAINER = "backends/megatron_utils/actor.py"

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def probe_slime(root: Path | None = None, *, own_script: bool = False, canary: bool = False) -> list[str]:
    """Return a line for every difference between this slime and those that the plugin knows; empty if all is well.

    Args:
        root: folder of the package `slime`. Unset: the one that can be imported.
        own_script: slime's own training script runs, with the plugin's hooks, and not the plugin's driver.
        canary: pushes are checked by `pipeline.canary`.
    """
    root = _package() if root is None else root
    if root is None:
        return ["slime is not importable here: install it (pip install -e SLIME --no-deps), or add it to PYTHONPATH"]
    if not (root / _TRAINER).exists():
        return [f"the package slime at {root} is not THUDM's: PyPI has another of that name; uninstall it"]
    if not (root / SINCE_V031).exists():
        return [f"slime at {root} is too old, from before v0.3.1: check out v0.3.1 or newer"]
    if own_script and BY_INTERVAL not in (root / _TRAINER).read_text(encoding="utf-8"):
        return [
            f"slime at {root} has no asynchronous training script that the plugin knows (slime's pull "
            "request 2391): start `python3 -m sat_slime.plugin.driver` in its place, with the same flags"
        ]
    return [
        f"slime at {root} is not one that this plugin knows ({KNOWN}): {what}"
        for what in _differences(root, own_script, canary)
    ]


def _package() -> Path | None:
    try:
        spec = importlib.util.find_spec("slime")
    except ValueError:  # slime is in sys.modules without a spec
        return None
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return Path(places[0]) if places else None


def _differences(root: Path, own_script: bool, canary: bool) -> Iterator[str]:
    read = functools.cache(lambda file: _nodes(root / file))
    for name in NAMES:
        if name.needed == "with pipeline.canary":
            for what in differences(name, read) if canary else ():
                yield f"{what}, which pipeline.canary needs: set that to none"
        elif own_script or name.needed != "in launch scripts of one's own":
            yield from differences(name, read)


def differences(name: Name, read: Callable[[str], Mapping[str, Node]]) -> Iterator[str]:
    """Yield a line for every reason why a slime does not have that name in any of its forms.

    Args:
        read: gives the functions and classes in a file of slime, by name, methods with their class; empty if the file
            is missing.
    """
    present = [(form, node) for form in name.forms if (node := read(form.file).get(form.name)) is not None]
    if not present:
        if name.needed != "where slime has it":
            places = [f"{form.file} has no {form.name}" for form in name.forms]
            yield " and ".join(places)
        return
    faults = [list(_faults(form, node)) for form, node in present]
    if all(faults):
        yield from min(faults, key=len)


def _faults(form: Form, node: Node) -> Iterator[str]:
    if form.parameters is not None and not (isinstance(node, ast.ClassDef) or _accepts(node.args, form.parameters)):
        yield f"{form.file}: {form.name} takes ({ast.unparse(node.args)}), not ({', '.join(form.parameters)})"
    body = ast.unparse(node) if form.body else ""
    yield from (f"{form.file}: {form.name} has no `{text}`" for text in form.body if text not in body)


def _nodes(path: Path) -> dict[str, Node]:
    """Return the functions, classes and methods of a module by name; empty if the file is missing."""
    if not path.exists():
        return {}
    definitions: dict[str, Node] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inner = [node, *node.body] if isinstance(node, ast.ClassDef) else [node]
        for child in inner:
            if isinstance(child, Node):
                definitions[child.name if child is node else f"{node.name}.{child.name}"] = child  # type: ignore[attr-defined]
    return definitions


def _accepts(parameters: ast.arguments, expected: list[str]) -> bool:
    """Return whether a function with these parameters takes a call with the expected ones."""
    positional = parameters.posonlyargs + parameters.args
    optional = {parameter.arg for parameter in positional[len(positional) - len(parameters.defaults) :]}
    optional |= {
        parameter.arg
        for parameter, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
        if default is not None
    }
    rest = [parameter.arg for parameter in (parameters.vararg, parameters.kwarg) if parameter is not None]
    names = [parameter.arg for parameter in positional + parameters.kwonlyargs] + rest
    known = [name for name in names if name in expected]
    return known == expected and set(names) - set(expected) <= optional | set(rest)
