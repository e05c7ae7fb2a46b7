"""The table of slime's names fits slime's trees, what was read of the newest version, and our own code."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from newest_slime import READ, recorded

import sat_slime.plugin
from sat_slime.plugin import probe
from sat_slime.plugin.slime_names import FORK, MAIN, NAMES, NEWEST, TREE, UNREAD, V031, VERSIONS, Form

PLUGIN = Path(sat_slime.plugin.__file__).parent
FORMS = [form for name in NAMES for form in name.forms]
IDS = [form.place.partition("(")[0] for form in FORMS]


@pytest.mark.needs_slime
def test_each_name_stands_in_the_tree_where_it_was_seen():
    spec = importlib.util.find_spec("slime")
    root = Path(spec.submodule_search_locations[0])
    version = V031 if (root / "utils/logging_utils.py").exists() else MAIN
    for form in FORMS:
        node = probe._nodes(root / form.file).get(form.name)
        fits = node is not None and not list(probe._faults(form, node))
        assert fits is (form.seen.get(version) == TREE), f"{form.place} in {version}"


@pytest.mark.parametrize("form", [form for form in FORMS if NEWEST in form.seen], ids=lambda form: form.place)
def test_each_name_of_the_newest_is_as_it_was_read(form):
    evidence = form.seen[NEWEST]
    if evidence == UNREAD or evidence.startswith("named in "):
        return
    if evidence.startswith("called in "):
        assert list(calls(form, *evidence.split()[2:])), f"no recorded call of {form.name}"
        return
    found = recorded(form.file, form.name)
    if found is None:  # a class of which only methods were read
        assert any(
            name.startswith(f"{form.name}.") for one in READ if one["file"] == form.file for name in one["functions"]
        )
        return
    if evidence == FORK:
        assert found["repository"] == "vllm-project/vime"
    else:
        assert found["repository"] == "THUDM/slime" and found["commit"].startswith(evidence)
    (node,) = ast.parse(
        f"def f{found['takes']}:\n" + "".join(f"    {line}\n" for line in [*found["does"], "pass"])
    ).body
    assert isinstance(node, ast.FunctionDef)
    assert list(probe._faults(form, node)) == []


def calls(form: Form, file: str, commit: str = "") -> Iterator[ast.Call]:
    """Recorded calls of that name in a file of the newest version; they must fit the table's parameters."""
    signature = form.parameters and inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in form.parameters]
    )
    for one in READ:
        if Path(one["file"]).name != file or not (one["commit"] or "").startswith(commit):
            continue
        for read in one["functions"].values():
            for node in ast.walk(ast.parse("\n".join(read.get("does", [])))):
                if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == form.name:
                    if signature:
                        signature.bind(*node.args, **{keyword.arg: None for keyword in node.keywords if keyword.arg})
                    yield node


def test_what_is_always_needed_is_in_every_version_and_nothing_else():
    for name in NAMES:
        versions = {version for form in name.forms for version in form.seen}
        assert (versions == set(VERSIONS)) is (name.needed == "always"), name.why


def test_no_name_is_there_twice_for_one_use():
    rows = [(name.use, form.place, name.needed) for name in NAMES for form in name.forms]
    assert len(rows) == len(set(rows))


def test_the_plugin_touches_no_other_name_of_slime():
    """It may touch one by an import, by a dotted path in a string, or by an attribute of an imported module. plugin/cpu
    stands in for a GPU and names what it patches itself."""
    modules = {form.module for form in FORMS}
    places = {f"{form.module}.{form.name.partition('.')[0]}" for form in FORMS}
    known = {"", *modules, *places, *(f"{module.rpartition('.')[0]}" for module in modules), "backends"}
    for file in PLUGIN.rglob("*.py"):
        if file.parent.name == "cpu":
            continue
        for place in touched(ast.parse(file.read_text())):
            assert place in known, (
                f"{file.relative_to(PLUGIN)} touches slime.{place}: add a row to plugin/slime_names.py"
            )


def touched(tree: ast.Module) -> Iterator[str]:
    """Dotted paths within the package `slime` that the code of a module names."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "slime":
            for one in node.names:
                place = f"{node.module}.{one.name}".removeprefix("slime.")
                yield place
                aliases[one.asname or one.name] = place
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_path(node.value):
            yield node.value.removeprefix("slime.")
    modules = {form.module for form in FORMS}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and aliases.get(node.value.id) in modules
        ):
            yield f"{aliases[node.value.id]}.{node.attr}"


def is_path(text: str) -> bool:
    return text.startswith("slime.") and all(part.isidentifier() for part in text.split("."))
