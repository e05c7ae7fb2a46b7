"""Every setting is read by the runtime that it is for: code outside `config` takes it from its section.

The readers are found in the source. `config.train.lr`, `train.lr` after `train = config.train`, and `section.lr` with
`section: TrainConfig` among a function's parameters are readers of `train.lr`; a check in `config` is none. A property
of a section hands on what it reads: `train.world_size` reads `train.data_parallel`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import create_model

import sat_slime
from sat_slime.config import GridConfig, LabConfig, SlimeConfig
from sat_slime.config.method_section import MethodConfig
from sat_slime.config.plugin_schema import PluginConfig
from sat_slime.config.schema import TrainConfig
from sat_slime.config.section import Section

PACKAGE = Path(sat_slime.__file__).parent
READERS: dict[type[Section], tuple[str, ...]] = {
    LabConfig: ("cli", "lab", "grid", "report", "runs"),
    SlimeConfig: ("cli", "launch", "cpu", "rehearsal", "plugin", "report", "runs"),
    PluginConfig: ("plugin", "launch"),
    GridConfig: ("cli", "grid", "report"),
}
"""The parts that read the settings of each kind of file."""
TAKEN_WHOLE = (MethodConfig,)
"""Sections whose settings `build_method` hands on to the stabilizers; tests/config/test_method_section.py says so."""
READ_OTHERWISE = {
    **{
        f"SlimeConfig.verifier.{key}": "launch.command sends the section whole, plugin.reward reads it"
        for key in ("workers", "cpu_s", "wall_s", "memory_mb")
    },
    **{
        f"SlimeConfig.cluster.{key}": "launch.memory makes its name of the kind of memory"
        for key in ("gpu_memory_gib", "host_memory_gib", "shm_gib", "object_store_gib")
    },
}
"""Settings whose readers are not found so, and where they are."""


def sections(model: type[Section], name: str = "") -> Iterator[tuple[str, type[Section]]]:
    """(dotted name, class) of a section and of those in it."""
    yield name, model
    for key, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from sections(field.annotation, f"{name}.{key}".strip("."))


class Reads(ast.NodeVisitor):
    """(section, setting) of every attribute that a module takes of a section; the section by its key or its class."""

    def __init__(self) -> None:
        self.found: set[tuple[str, str]] = set()
        self.names: dict[str, set[str]] = {}

    def section_of(self, node: ast.expr) -> set[str]:
        """What the receiver of an attribute is: a key such as `train`, the class of a parameter, or both."""
        if isinstance(node, ast.Name):
            return {node.id, *self.names.get(node.id, ())}
        return {node.attr, *self.names.get(node.attr, ())} if isinstance(node, ast.Attribute) else set()

    def learn(self, target: ast.expr, value: ast.expr) -> None:
        """`train = config.train`, also of several at once."""
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for name, receiver in zip(target.elts, value.elts, strict=False):
                self.learn(name, receiver)
        elif isinstance(target, (ast.Name, ast.Attribute)):
            name = target.id if isinstance(target, ast.Name) else target.attr
            self.names.setdefault(name, set()).update(self.section_of(value))

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.learn(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.names.setdefault(node.target.id, set()).update(_classes(node.annotation))
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.learn(node.target, node.value)
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        self.names.setdefault(node.arg, set()).update(_classes(node.annotation))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.found |= {(section, node.attr) for section in self.section_of(node.value)}
        self.generic_visit(node)


def _classes(annotation: ast.expr | None) -> set[str]:
    """Names of classes in an annotation."""
    return {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)} if annotation else set()


@functools.cache
def reads(parts: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    """(section, attribute) of all modules of these parts."""
    found: set[tuple[str, str]] = set()
    for part in parts:
        for path in sorted((PACKAGE / part).rglob("*.py")):
            tree, visitor = ast.parse(path.read_text()), Reads()
            visitor.visit(tree)  # once for what its names are, then for what is taken of them
            visitor.visit(tree)
            found |= visitor.found
    return frozenset(found)


def handed_on(section: type[Section]) -> Iterator[tuple[str, set[str]]]:
    """Each property or method of a section, and the settings that it reads."""
    for kind in section.__mro__:
        for name, member in vars(kind).items() if issubclass(kind, Section) and kind is not Section else ():
            function = member.fget if isinstance(member, property) else member
            if inspect.isfunction(function) and not name.startswith("_"):
                tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
                yield (
                    name,
                    {
                        node.attr
                        for node in ast.walk(tree)
                        if isinstance(node, ast.Attribute)
                        and isinstance(node.value, ast.Name)
                        and node.value.id == "self"
                    },
                )


def unread(model: type[Section], parts: tuple[str, ...]) -> list[str]:
    """Dotted keys of the settings that no module of these parts reads."""
    found = reads(parts)
    keys = []
    for dotted, section in sections(model):
        if issubclass(section, TAKEN_WHOLE) or dotted.startswith("method"):
            continue
        last = dotted.rpartition(".")[2] or "config"
        called = {last, *(kind.__name__ for kind in section.__mro__ if issubclass(kind, Section))} - {"Section"}
        taken = {attribute for name, attribute in found if name in called}
        properties = dict(handed_on(section))
        while more := {key for name, read in properties.items() if name in taken for key in read} - taken:
            taken |= more
        keys += [f"{dotted}.{key}".strip(".") for key in section.model_fields if key not in taken]
    return keys


@pytest.mark.parametrize("model", READERS, ids=lambda model: model.__name__)
def test_every_setting_is_read_by_its_runtime(model):
    left = [key for key in unread(model, READERS[model]) if f"{model.__name__}.{key}" not in READ_OTHERWISE]
    assert not left, f"nothing outside config reads {', '.join(left)}"


@pytest.mark.parametrize("key", ["brand_new", "kv_heads"])
def test_a_setting_that_nothing_reads_is_found(key):
    """Also where a setting of another section has its name."""
    train = create_model("TrainConfig", __base__=TrainConfig, **{key: (int, 1)})
    run = create_model("LabConfig", __base__=LabConfig, train=(train, train()))
    assert unread(run, READERS[LabConfig]) == [*unread(LabConfig, READERS[LabConfig]), f"train.{key}"]
