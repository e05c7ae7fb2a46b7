"""The import rule of docs/architecture.md, held against every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "sat_slime"

MAY_IMPORT = {
    "objective": set(),
    "reward": set(),
    "config": {"objective"},
    "rollout": {"objective"},
    "prompts": {"reward"},
    "evaluation": {"reward", "rollout"},
    "runs": {"config"},
    "grid": {"config", "runs"},
    "report": {"config", "evaluation", "grid", "objective", "rollout", "runs"},
    "embedded": {"config", "evaluation", "objective", "reward", "rollout"},
    "plugin": {"config", "evaluation", "objective", "reward", "rollout"},
    "cli": {"config", "evaluation", "grid", "objective", "prompts", "report", "reward", "rollout", "runs"},
}
ALSO_INSIDE_FUNCTIONS = {"cli": {"embedded", "plugin"}}
"""What starts a run is imported when it starts."""
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
    """`sat_slime.config.schema.X` is of the part `config`."""
    return {name.split(".")[1] for name in names if name.startswith("sat_slime.")}


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


def test_rooms_of_the_reports_do_not_import_each_other():
    """They share what stands beside them in report/; report/write alone knows them."""
    rooms = {path.parent.name for path in PACKAGE.glob("report/*/__init__.py")}
    assert rooms == {"run", "comparison", "diagnosis", "replay"}
    for path in modules("report"):
        (home, *_) = path.relative_to(PACKAGE / "report").parts
        names = {name for name in imports(path, module_level=False) if name.startswith("sat_slime.report.")}
        if home != "write.py":
            assert {name.split(".")[2] for name in names} & rooms <= {home}, path


@pytest.mark.parametrize("part", ENGINE_FREE)
def test_no_engine_is_imported_before_a_run_starts(part):
    for path in modules(part):
        found = {name.split(".")[0] for name in imports(path, module_level=True)}
        assert not found & ENGINES, path


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
