"""What the documents name is there: links, paths, modules, dotted names, commands with their options, settings, and the
imports of examples."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from sat_slime.cli.app import whole_app
from sat_slime.config import EmbeddedConfig, GridConfig, SlimeConfig
from sat_slime.config.plugin_schema import PluginConfig
from sat_slime.objective.metrics import metric_named, slime_names
from sat_slime.tasks import TASKS, Task

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sat_slime"
DOCUMENTS = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PARTS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

documents = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(text: str, language: str = r"\w*") -> list[str]:
    """The fenced blocks of a document."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def in_code(text: str) -> list[str]:
    """What stands between backticks in the text, fenced blocks left out."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]


# ------------------------------------------------------------------------------------------------------ links


def anchors(path: Path) -> set[str]:
    """What a link may name behind `#`, as GitHub makes it of headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@documents
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


# ------------------------------------------------------------------------------------------- paths and modules

SLIMES_OWN = {"scripts/models", "scripts/run-qwen3-30B-A3B.sh"}
MADE_UP = {"configs/x.yaml", "sat_slime/tasks/sorting.py"}
"""Files of examples."""


@documents
def test_paths_are_there(path):
    ours = r"(?<![\w/.-])(?:\./|(?:\.\./)+)?((?:sat_slime|tests|bench|configs|scripts|requirements|docs)/[\w./*-]*)"
    named = {name.rstrip("./") for name in re.findall(ours, path.read_text())} - SLIMES_OWN - MADE_UP
    assert {name for name in named if not list(ROOT.glob(name))} == set()


NO_MODULES = {
    "rollout/verifier_verdicts": "what slime's trackers show",
    "rollout/step": "what slime's trackers show",
    "rollout/truncated_ratio": "what slime's trackers show",
    "runs/sat": "the folder of a run",
}


@documents
def test_modules_are_there(path):
    """`embedded/trainer/rank`, with or without .py, or a folder; metrics look alike and are in their table."""
    for code in in_code(path.read_text()):
        name = code.rstrip("/")
        if not re.fullmatch(r"[a-z_]+(/[a-z_]+)+(\.py)?", name) or name.split("/")[0] not in PARTS:
            continue
        beside = (path.parent / name).exists()
        a_metric = metric_named(name) is not None or name in slime_names()
        assert beside or a_metric or name in NO_MODULES or exists(PACKAGE / name), name


def exists(path: Path) -> bool:
    return path.exists() or path.with_suffix(".py").exists()


@documents
def test_dotted_names_are_there(path):
    for name in set(re.findall(r"(?<![\w/.-])sat_slime(?:\.\w+)+(?![\w/])", path.read_text())):
        if not name.endswith(".yaml"):
            assert is_defined(name), name


def is_defined(dotted: str) -> bool:
    """Whether a dotted name is a module, or what a module defines; nothing is imported, since some need slime."""
    words = dotted.split(".")
    for end in range(len(words), 0, -1):
        module = ROOT.joinpath(*words[:end])
        if exists(module):
            file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
            return set(words[end : end + 1]) <= defined(file)
    return False


def defined(file: Path) -> set[str]:
    """The names that a module defines or imports, in whatever block."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_a_name_that_nothing_defines_is_seen():
    assert is_defined("sat_slime.plugin.loss.policy_loss") and is_defined("sat_slime.objective")
    assert not is_defined("sat_slime.plugin.loss.gone") and not is_defined("sat_slime.gone")


@documents
def test_examples_in_python_import_what_is_there(path):
    for block in blocks(path.read_text(), "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sat_slime":
                module = importlib.import_module(node.module)
                assert [name.name for name in node.names if not hasattr(module, name.name)] == [], node.module


ELSEWHERE = {
    "HuggingFaceH4",
    "SLIME_COMMIT",
    "StalenessManager",
    "aime_2024",
    "is_expert",
    "max_head_offpolicyness",
    "max_off_policy_steps",
    "optimizer_param_scheduler",
    "server_info",
    "staleness_threshold",
    "update_weight_from_distributed",
}
"""Names of other projects."""
MADE_OF_PARTS = {"own_routing", "verifier_verdicts"}


@pytest.fixture(scope="module")
def words_of_the_code():
    """Every word in the code and its settings, and every file's name."""
    files = [path for folder in ("sat_slime", "bench", "configs", "scripts") for path in (ROOT / folder).rglob("*.*")]
    texts = [path.read_text() for path in files if path.suffix in (".py", ".yaml", ".sh", ".json")]
    tests = {path.stem for path in (ROOT / "tests").rglob("*.py")}
    return {word for text in texts for word in re.findall(r"\w+", text)} | {path.stem for path in files} | tests


@documents
def test_names_are_in_the_code(path, words_of_the_code):
    """Words such as `snake_case` and `CamelCase`; what ends in a capital letter, `queue_N`, stands for many."""
    if path.name == "sources.md":
        pytest.skip("its names are those of other projects' files and functions")
    for code in in_code(path.read_text()):
        names = set(re.findall(r"(?<![\w.-])(?:[A-Za-z]\w*_\w*[a-z0-9]|[A-Z][a-z]+[A-Z]\w+)\b", code))
        assert names <= words_of_the_code | ELSEWHERE | MADE_OF_PARTS, code


# ------------------------------------------------------------------------------------------ the command line


def commands(text: str) -> Iterator[list[str]]:
    """The words after `sat-slime`, wherever it is called in a document."""
    lines = [line for block in blocks(text) for line in block.replace("\\\n", " ").splitlines()]
    for line in [*lines, *in_code(text)]:
        for call in re.findall(r"(?:^|[\s/:])sat-slime ([^;|#`&]*)", line):
            yield re.split(r"[\s\[\]'\"]+", call)


@documents
def test_commands_and_their_options_are_there(path):
    for words in commands(path.read_text()):
        command = whole_app()
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands") or not words or not re.match(r"[a-z]", words[0]), words
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        asked = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert asked - {"-h", "--help", "--version"} <= known, words


# ------------------------------------------------------------------------------------------------- settings


def is_setting(model: type[BaseModel], keys: list[str]) -> bool:
    """Whether dotted keys lead to a setting or a section of a schema; what is below a setting is its own affair."""
    field = model.model_fields.get(keys[0])
    inner = field.annotation if field else None
    if inner is Task and len(keys) > 1:
        return any(is_setting(task, keys[1:]) for task in TASKS.values())
    if field and len(keys) > 1 and isinstance(inner, type) and issubclass(inner, BaseModel):
        return is_setting(inner, keys[1:])
    return field is not None


SCHEMAS = (EmbeddedConfig, SlimeConfig, GridConfig, PluginConfig)
NO_SETTINGS = {
    "method.parts": "of a Method in Python",
    "train.train": "a function of slime",
    "task.length": "of an example",
}


@documents
def test_settings_are_there(path):
    """`section.key`, `section.key: value` and `section.key=value`."""
    text = path.read_text()
    named = {match[1] for code in in_code(text) if (match := re.match(r"([a-z_]+(?:\.[a-z_]+)+)(?:[:=]|$)", code))}
    named |= set(re.findall(r"--set[ =]'?([a-z_]+(?:\.[a-z_]+)+)=", text))
    sections = {name for model in SCHEMAS for name in model.model_fields}
    for name in named - set(NO_SETTINGS):
        keys = name.split(".")
        if keys[0] in sections and keys[-1] not in {"yaml", "json", "jsonl", "html", "txt", "py", "safetensors"}:
            assert any(is_setting(model, keys) for model in SCHEMAS), name
