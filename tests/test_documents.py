"""What the documents name is there: links, paths, commands with their options, settings, and what examples import."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel
from typer.testing import CliRunner

from sat_slime.cli import app
from sat_slime.config import GridConfig, LabConfig, SlimeConfig
from sat_slime.config.slime_schema import PluginConfig
from sat_slime.objective.metrics import metric_named, slime_names

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sat_slime"
DOCUMENTS = {
    path: path.read_text(encoding="utf-8")
    for path in (
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "studies").rglob("*.md")),
    )
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
OWN = [path for path in DOCUMENTS if "studies" not in path.parts and path.name != "sources.md"]
"""Pages about this package; a study's plan speaks of what was there when it was made, sources of other projects."""


def in_code(text: str) -> list[str]:
    """What stands between backticks in the text, fenced blocks left out."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", FENCE.sub("", text))]


def anchors(path: Path) -> set[str]:
    """What a link may name behind `#`, as GitHub makes it of headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def exists(path: Path) -> bool:
    return path.exists() or path.with_suffix(".py").exists()


def dead_links(path: Path, text: str) -> Iterator[str]:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield target


ELSEWHERE = {
    "configs/x.yaml",  # of examples
    "scripts/models",  # slime's own
    "scripts/run-qwen3-30B-A3B.sh",
    "runs/sat",  # the folder of a run
    "rollout/verifier_verdicts",  # what slime's trackers show
    "rollout/truncated_ratio",
}


def missing_paths(path: Path, text: str) -> Iterator[str]:
    """`configs/grid/demo.yaml`, and `lab/trainer/rank` with or without .py; metrics look alike, in their table."""
    ours = r"(?<![\w/.-])(?:\./|(?:\.\./)+)?((?:sat_slime|tests|bench|configs|scripts|requirements|docs)/[\w./*-]*)"
    parts = {module.parent.name for module in PACKAGE.glob("*/__init__.py")}
    for name in {name.rstrip("./") for name in re.findall(ours, text)} - ELSEWHERE:
        if not list(ROOT.glob(name)):
            yield name
    for name in {code.rstrip("/") for code in in_code(text)} - ELSEWHERE:
        of_ours = re.fullmatch(r"[a-z_]+(/[a-z_]+)+(\.py)?", name) and name.split("/")[0] in parts
        if of_ours and not (metric_named(name) or name in slime_names() or exists(PACKAGE / name)):
            yield name


def wrong_imports(path: Path, text: str) -> Iterator[str]:
    for language, block in FENCE.findall(text):
        for node in ast.walk(ast.parse(block)) if language == "python" else ():
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sat_slime":
                module = importlib.import_module(node.module)
                yield from (f"{node.module}.{name.name}" for name in node.names if not hasattr(module, name.name))


def wrong_commands(path: Path, text: str) -> Iterator[str]:
    """Calls of `sat-slime` with a command or an option that is not there."""
    lines = [line for _, block in FENCE.findall(text) for line in joined(block)]
    for line in [*lines, *in_code(text)]:
        for call in re.findall(r"(?:^|[\s/:])sat-slime ([^;|#`&]*)", line):
            command, words = typer.main.get_command(app), re.split(r"[\s\[\]'\"]+", call)
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            asked = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            unknown = hasattr(command, "commands") and words and re.match(r"[a-z]", words[0])
            if unknown or not asked - {"-h", "--help", "--version"} <= known:
                yield call


SCHEMAS = (LabConfig, SlimeConfig, GridConfig, PluginConfig)


def is_setting(model: type[BaseModel], keys: list[str]) -> bool:
    """Whether dotted keys lead to a setting or a section of a schema; what is below a setting is its own affair."""
    field = model.model_fields.get(keys[0])
    inner = field.annotation if field else None
    if field and len(keys) > 1 and isinstance(inner, type) and issubclass(inner, BaseModel):
        return is_setting(inner, keys[1:])
    return field is not None


def unknown_settings(path: Path, text: str) -> Iterator[str]:
    """`section.key`, `section.key: value` and `section.key=value`."""
    named = {match[1] for code in in_code(text) if (match := re.match(r"([a-z_]+(?:\.[a-z_]+)+)(?:[:=]|$)", code))}
    named |= set(re.findall(r"--set[ =]'?([a-z_]+(?:\.[a-z_]+)+)=", text))
    sections = {name for model in SCHEMAS for name in model.model_fields}
    for name in named:
        keys = name.split(".")
        a_file = keys[-1] in {"yaml", "json", "jsonl", "html", "txt", "py", "safetensors"}
        if keys[0] in sections and not a_file and not any(is_setting(model, keys) for model in SCHEMAS):
            yield name


CHECKS = (missing_paths, wrong_imports, wrong_commands, unknown_settings)


def test_links_lead_somewhere():
    assert [(path.name, link) for path, text in DOCUMENTS.items() for link in dead_links(path, text)] == []


def test_documented_runs_plan(tmp_path, monkeypatch):
    """Every `launch` and `grid` of a block whose file is there, with --dry-run."""
    lines = [line for text in DOCUMENTS.values() for _, block in FENCE.findall(text) for line in joined(block)]
    calls = {re.split(" #| --commands| --dry-run", line)[0] for line in lines if re.match(RUNS, line)}
    assert len(calls) > 10
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    for call in sorted(calls):
        done = CliRunner().invoke(app, [*shlex.split(call)[1:], "--dry-run"])
        assert done.exit_code == 0, (call, done.output)


RUNS = r"sat-slime (launch|grid) configs/(?!.*(DIR/|my_package))"
"""Runs that need neither checkouts nor a module of one's own."""


def joined(block: str) -> list[str]:
    """The lines of a block, those that end in a backslash with the next."""
    return block.replace("\\\n", " ").splitlines()


def test_pages_that_the_code_names_are_there():
    files = [path for folder in ("sat_slime", "scripts", "bench", "tests") for path in (ROOT / folder).rglob("*.*")]
    named = {
        (path.name, page, anchor)
        for path in files
        if path.suffix in (".py", ".yaml", ".sh", ".txt") and path != Path(__file__)
        for page, anchor in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", path.read_text())
    }
    assert [
        name for name in named if not (ROOT / name[1]).exists() or (name[2] and name[2] not in anchors(ROOT / name[1]))
    ] == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_what_pages_name_is_there(check: Callable[[Path, str], Iterator[str]]):
    assert [(path.name, name) for path in OWN for name in check(path, DOCUMENTS[path])] == []
