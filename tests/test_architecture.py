"""What a module may import: parts that stand below its own, and no other module in a circle."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "sat_slime"
PATHS = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
LAYERS = (
    {"models", "objective", "reward", "evaluation"},
    {"tasks", "rollout"},
    {"config"},
    {"prompts", "runs"},
    {"report", "lab", "plugin"},
    {"cpu"},
    {"launch"},
    {"rehearsal"},
    {"cli"},
)
"""A part imports from the layers below its own, and from no other part."""


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a module imports, also when its functions run, and for its types."""
    here = path.relative_to(PACKAGE.parent).with_suffix("").parts
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = ".".join(filter(None, [*here[: -node.level], node.module] if node.level else [node.module]))
            yield from (f"{source}.{name.name}" for name in node.names)
        else:
            waiting += ast.iter_child_nodes(node)


def test_parts_import_only_what_is_below_them():
    parts = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    layer = {part: number for number, level in enumerate(LAYERS) for part in level}
    assert parts == set(layer)
    for name, path in PATHS.items():
        own = name.split(".")[1] if "." in name else ""
        for other in {found.split(".")[1] for found in imports(path) if found.startswith("sat_slime.")}:
            assert other == own or layer.get(other, -1) < layer.get(own, 99), (name, other)


def test_no_module_imports_another_in_a_circle():
    """Imports inside functions count."""

    def module(name: str) -> str:
        while name and name not in PATHS:
            name = name.rpartition(".")[0]
        return name

    graph = {name: {module(found) for found in imports(path)} - {"", name} for name, path in PATHS.items()}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_settings_are_read_without_arrays():
    told = "import sys, sat_slime.config; print({'numpy', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True).stdout == "set()\n"


def test_text_has_its_encoding_whatever_the_locale():
    # Not a rule in pyproject.toml: it is one of ruff's preview, which changes what others say.
    rule = ["ruff", "check", "--preview", "--isolated", "--no-cache", "--select", "PLW1514", "--quiet"]
    subprocess.run([sys.executable, "-m", *rule, str(PACKAGE)], check=True)


def test_the_launcher_imports_nothing_of_what_it_launches():
    """That stands below it; but for slime's names in `compat`, by which a checkout is judged unimported."""
    for name, path in PATHS.items():
        if name.startswith("sat_slime.launch"):
            found = {one for one in imports(path) if one.startswith(("sat_slime.plugin.", "sat_slime.lab."))}
            assert not {one for one in found if not one.startswith("sat_slime.plugin.compat.")}, name


def test_what_is_asked_of_the_trainers_process_by_name_is_there():
    files = [*(PACKAGE.parent / "bench").glob("*.py"), *(PACKAGE / "lab").glob("*.py")]
    asked = {name for file in files for name in re.findall(r'\.(?:call|start)\("(\w+)"', file.read_text())}
    assert {"train", "warm_up"} <= asked <= {*re.findall(r"def (\w+)\(", (PACKAGE / "lab/trainer.py").read_text())}
