"""docs/internals/architecture.md: every module keeps its import rule, and its picture and tables are the package's."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "sat_slime"
DOCUMENT = Path(__file__).parents[1] / "docs" / "internals" / "architecture.md"

MAY_IMPORT = {
    "models": set(),
    "objective": set(),
    "reward": set(),
    "tasks": {"reward"},
    "config": {"models", "objective", "tasks"},
    "rollout": {"models"},
    "prompts": {"reward"},
    "evaluation": set(),
    "runs": {"config", "objective"},
    "grid": {"config", "runs"},
    "report": {"config", "grid", "objective", "rollout", "runs"},
    "embedded": {"config", "evaluation", "models", "objective", "reward", "rollout", "runs", "tasks"},
    "plugin": {"config", "evaluation", "models", "objective", "prompts", "reward", "rollout", "runs", "tasks"},
    "rehearsal": {"config", "models", "objective", "plugin", "report", "runs"},
    "cli": {
        *("config", "embedded", "grid", "objective", "plugin", "prompts", "rehearsal", "reward"),
        *("rollout", "runs"),
    },
}
ALSO_INSIDE_FUNCTIONS = {"cli": {"report"}}
"""What draws is imported when it does."""
ENGINES = {"megatron", "ray", "sglang", "transformers"}
ENGINE_FREE = tuple(part for part in MAY_IMPORT if part not in ("embedded", "plugin"))


def modules(part: str) -> list[Path]:
    return sorted((PACKAGE / part).rglob("*.py"))


def imports(path: Path, *, module_level: bool) -> Iterator[str]:
    """Dotted names that a module imports: as it is imported itself, or also when its functions run."""
    here = path.relative_to(PACKAGE.parent).with_suffix("").parts
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: -node.level]) if node.level else ""
            source = ".".join(filter(None, [base, node.module]))
            yield from (f"{source}.{name.name}" for name in node.names)
        elif module_level and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        elif module_level and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def parts_of_ours(names: Iterator[str]) -> set[str]:
    """`sat_slime.config.schema.X` is of the part `config`. The one module beside the parts, `outside`, is for all."""
    return {name.split(".")[1] for name in names if name.startswith("sat_slime.")} - {"outside"}


def test_every_part_has_its_rule():
    parts = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert parts == set(MAY_IMPORT)


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_parts_import_only_what_is_below_them(part):
    allowed = MAY_IMPORT[part] | {part}
    inside = allowed | ALSO_INSIDE_FUNCTIONS.get(part, set())
    for path in modules(part):
        assert parts_of_ours(imports(path, module_level=True)) <= allowed, path
        assert parts_of_ours(imports(path, module_level=False)) <= inside, path


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_the_rule_allows_no_more_than_is_imported(part):
    found = {name for path in modules(part) for name in parts_of_ours(imports(path, module_level=False))}
    assert found - {part} == MAY_IMPORT[part] | ALSO_INSIDE_FUNCTIONS.get(part, set())


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table of the document after a line that begins with `heading`."""
    _, _, text = DOCUMENT.read_text().partition(f"\n{heading}")
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table, heading
    return [line.strip("|\n ").split(" |") for line in table[0].splitlines()[1:]]


def test_the_document_draws_every_part_above_what_it_imports():
    picture = re.search(r"```\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert picture
    lines = [re.split(r"\s{2,}", line.strip())[:-1] for line in picture[1].splitlines()]
    level = {part: -number for number, line in enumerate(lines) for part in line}
    assert sum(map(len, lines)) == len(level) and set(level) == set(MAY_IMPORT)
    for part, below in MAY_IMPORT.items():
        assert all(level[other] < level[part] for other in below | ALSO_INSIDE_FUNCTIONS.get(part, set())), part


def test_the_document_names_what_each_part_imports():
    table = {row[0].strip("` "): row[1].partition("when a command runs") for row in rows("| part |")}
    names = {
        part: (set(re.findall(r"`(\w+)`", early)), set(re.findall(r"`(\w+)`", late)))
        for part, (early, _, late) in table.items()
    }
    assert names == {part: (below, ALSO_INSIDE_FUNCTIONS.get(part, set())) for part, below in MAY_IMPORT.items()}


def test_the_readme_names_every_part_once():
    listed = re.search(
        r"^sat_slime/(.*?)^configs/", (PACKAGE.parent / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert listed
    assert sorted(re.findall(r"^ *(\w+)/", listed[1], re.MULTILINE)) == sorted(MAY_IMPORT)


def test_the_document_names_every_folder_of_the_package_once():
    folders = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")} - {"."}
    assert sorted(row[0].strip("` ") for row in rows("| folder |")) == sorted(folders)


def test_rooms_of_the_reports_do_not_import_each_other():
    """They share what stands beside them in report/, its dumps among that; report/write_reports alone knows them."""
    rooms = {path.parent.name for path in PACKAGE.glob("report/*/__init__.py")} - {"dumps"}
    assert rooms == {"run", "comparison", "diagnosis", "replay", "serve", "checkup"}
    for path in modules("report"):
        (home, *_) = path.relative_to(PACKAGE / "report").parts
        names = {name for name in imports(path, module_level=False) if name.startswith("sat_slime.report.")}
        if home != "write_reports.py":
            assert {name.split(".")[2] for name in names} & rooms <= {home}, path


LAYERS = PACKAGE / "models" / "layers.py"
"""Megatron's layers, which a family imports when a trainer builds a model."""


@pytest.mark.parametrize("part", ENGINE_FREE)
def test_no_engine_is_imported_before_a_run_starts(part):
    for path in modules(part):
        if path == LAYERS:
            continue
        found = {name.split(".")[0] for name in imports(path, module_level=True)}
        assert not found & ENGINES, path


def dependencies(path: Path, known: set[str]) -> set[str]:
    """Modules of ours that a module imports, inside functions too."""
    found = set()
    for name in imports(path, module_level=False):
        while name and name not in known:
            name = name.rpartition(".")[0]
        found.add(name)
    return found - {"", dotted(path)}


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components of more than one module, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in graph[module]:
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            component = {stack.pop()}
            while module not in component:
                component.add(stack.pop())
            found.extend([component] if len(component) > 1 else [])

    for module in graph:
        if module not in order:
            visit(module)
    return found


def test_no_module_imports_another_in_a_circle():
    """Imports inside functions count, and those under TYPE_CHECKING."""
    paths = {dotted(path): path for path in PACKAGE.rglob("*.py")}
    assert circles({name: dependencies(path, set(paths)) for name, path in paths.items()}) == []


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"e"}, "f": {"a"}}) == [{"a", "b", "c"}]


ONE_THING = {
    "figures": "the figures of a report",
    "page": "the page of a report; report/page is what they share",
    "tables": "the tables of a report",
    "loss": "the loss; plugin/loss is its dotted path for slime",
    "reward": "plugin/reward is the dotted path for slime",
    "scores": "what a policy is judged by: the score forms of the objective, and the scores of an evaluation",
    "running_sums": "the task; plugin/running_sums is a dotted path of its reward for slime",
    "streaming": "plugin/streaming is the dotted path for slime",
}
"""Names that several modules have, each for one thing."""


def test_a_name_of_a_module_stands_for_one_thing():
    names = [path.stem for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert {name for name in names if names.count(name) > 1} <= set(ONE_THING)


def test_the_rule_sees_relative_conditional_and_late_imports(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path / "sat_slime")
    path = tmp_path / "sat_slime" / "config" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "from ..cli import app\nfrom . import y\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import a\nelse:\n    import b\ntry:\n    import c\nexcept ImportError:\n    pass\n"
        "class C:\n    import d\n    def f(self):\n        import e\n"
    )
    early, all_of_them = set(imports(path, module_level=True)), set(imports(path, module_level=False))
    assert early == {"sat_slime.cli.app", "sat_slime.config.y", "typing.TYPE_CHECKING", "b", "c", "d"}
    assert all_of_them == early | {"a", "e"}


def test_text_has_its_encoding_whatever_the_locale():
    # Not a rule in pyproject.toml: it is one of ruff's preview, which changes what others say.
    rule = ["ruff", "check", "--preview", "--isolated", "--no-cache", "--select", "PLW1514", "--quiet"]
    subprocess.run([sys.executable, "-m", *rule, str(PACKAGE)], check=True)
