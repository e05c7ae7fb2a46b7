"""The pages of the configuration: every setting with its type, its default, its marks and its meaning."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sat_slime.config import EmbeddedConfig, GridConfig, SlimeConfig
from sat_slime.config.base_files import as_yaml
from sat_slime.config.method_section import MethodConfig
from sat_slime.config.plugin_schema import PluginConfig
from sat_slime.config.section import COMPUTES_NOTHING, MAY_CHANGE_ON_RESUME, OWN_TO_A_CELL, Mark, Section, section_class
from sat_slime.tasks import TASKS

from .markdown import code, linked, page, table

UP = "../../"
HEAD = ["setting", "type", "default", "marks", "meaning"]
MARKS = {MAY_CHANGE_ON_RESUME: "resume", COMPUTES_NOTHING: "no numbers", OWN_TO_A_CELL: "cell"}
TYPES = {bool: "true or false", int: "integer", float: "number", str: "text", dict: "mapping", Any: "any"}
BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
LEGEND = f"""\
Marks: **resume**, a resumed run may change it; **no numbers**, it changes no number that is computed; **cell**, it
tells the cells of a grid apart. A resumed run keeps every setting without the mark **resume**
([what that means]({UP}configuration.md#what-a-change-of-a-setting-means))."""


def embedded() -> str:
    """The page of a run of the embedded runtime."""
    return page("Settings of an embedded run", _introduction(EmbeddedConfig, "embedded"), *_sections(EmbeddedConfig))


def slime() -> str:
    """The page of a run on slime."""
    return page("Settings of a run on slime", _introduction(SlimeConfig, "slime"), *_sections(SlimeConfig))


def _introduction(model: type[Section], name: str) -> str:
    base = f"[`configs/{name}/base.yaml`]({UP}../configs/{name}/base.yaml)"
    return (
        f"{_doc(model)} The same settings as a file to read: {base}. "
        f"The section `method` has [a page of its own](method.md).\n\n{LEGEND}"
    )


def grid() -> str:
    """The page of a grid."""
    more = f"How a grid is written and run: [the lag grid]({UP}grid.md)."
    return page("Settings of a grid", f"{_doc(GridConfig)} {more}", *_sections(GridConfig))


def plugin() -> str:
    """The page of the plugin's own section in slime's configuration."""
    more = f"For launch scripts of your own: [SAT in a slime run of your own]({UP}slime.md)."
    return page("Settings of the plugin", f"{_doc(PluginConfig)} {more}", *_sections(PluginConfig))


def method() -> str:
    """The page of the section `method`, without the settings of the stabilizers, which have pages of their own."""
    sections = [name for name, field in MethodConfig.model_fields.items() if section_class(field) and name != "clip"]
    more = (
        f"Each stabilizer that has settings has a section of its own below `method`: {', '.join(map(code, sections))}. "
        f"[The methods](../methods.md) list them all, with their settings. How methods are written: "
        f"[configuration]({UP}configuration.md#the-method)."
    )
    clip = section_class(MethodConfig.model_fields["clip"])
    assert clip is not None
    blocks = [_table(MethodConfig), "## `method.clip`", _doc(clip), _table(clip, prefix="clip.")]
    return page("The section `method`", f"{_doc(MethodConfig)}\n\n{more}\n\n{LEGEND}", *blocks)


def settings_table(section: type[BaseModel], leave_out: Iterable[str] = (), up: str = UP) -> str:
    """The settings of a section, without their marks."""
    rows = (_row(name, field, up, "") for name, field in section.model_fields.items() if name not in leave_out)
    return table([word for word in HEAD if word != "marks"], ([*row[:3], row[4]] for row in rows))


def _sections(model: type[Section]) -> Iterator[str]:
    """Headings, docstrings and tables of a schema: what stands at its top, then each section."""
    yield _table(model)
    for name, field in model.model_fields.items():
        section = section_class(field)
        if section and section is not MethodConfig:
            yield from (f"## `{name}`", _doc(section), _table(section, marks=_marks(field)))
        for kind in TASKS.values() if name == "task" else ():
            if kind is not section:
                yield from (f"## `task` of name `{kind().name}`", _doc(kind), _table(kind))


def _table(section: type[BaseModel], prefix: str = "", marks: str = "") -> str:
    """marks: of the whole section."""
    settings = section.model_fields.items()
    return table(HEAD, (_row(prefix + name, field, UP, marks) for name, field in settings if not section_class(field)))


def _row(name: str, field: FieldInfo, up: str, marks: str) -> list[str]:
    meaning = linked(" ".join((field.description or "").split()), up)
    return [code(name), in_words(field.annotation, field.metadata), _default(field), _marks(field) or marks, meaning]


def _doc(section: type[BaseModel]) -> str:
    return linked(" ".join((section.__doc__ or "").split()), UP)


def _marks(field: FieldInfo) -> str:
    return ", ".join(MARKS[mark] for mark in field.metadata if isinstance(mark, Mark))


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return "unset" if value is None else code(as_yaml(value))


def in_words(kind: Any, metadata: Iterable[Any] = ()) -> str:
    """A type with its bounds, such as `integer > 0`. `None` is left out: the default says `unset`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return in_words(inner[0], [*inner[1:], *metadata])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(in_words(one, metadata) for one in inner if one is not type(None))
    if origin is typing.Literal:
        return ", ".join(map(code, inner))
    if origin is list:
        return f"list of {in_words(inner[0])}"
    bounds = " and ".join(_bounds(metadata))
    return f"{TYPES[origin or kind]} {bounds}".strip()


def _bounds(metadata: Iterable[Any]) -> Iterator[str]:
    for one in metadata:
        if isinstance(one, FieldInfo):
            yield from _bounds(one.metadata)
        yield from (f"{sign} {getattr(one, name)}" for name, sign in BOUNDS.items() if hasattr(one, name))
