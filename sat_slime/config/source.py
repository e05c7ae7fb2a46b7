"""YAML files as nested settings that remember the file and line of every key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

KeyPath = tuple[str, ...]


class ConfigError(ValueError):
    """Faults of a configuration, each one line that names the place, the key, the value and the remedy."""

    def __init__(self, *errors: str):
        self.errors = list(errors)
        super().__init__("\n".join(errors))


@dataclass
class Source:
    """Nested settings, and where each was written."""

    values: dict[str, Any]
    origins: dict[KeyPath, str]
    """Place of each key path, such as `configs/x.yaml:12`; the empty path is the file itself."""

    def origin(self, path: KeyPath) -> str:
        """Return where `path` was written, or its nearest parent that was written anywhere."""
        return next(self.origins[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.origins)


def merged(base: Any, child: Any) -> Any:
    """Return `child` laid over `base`: sections merge key by key, anything else is replaced."""
    if not (isinstance(base, Mapping) and isinstance(child, Mapping)):
        return child
    return {**base, **{key: merged(base.get(key), value) for key, value in child.items()}}


def read_layers(path: str | Path, below: tuple[Path, ...] = ()) -> list[Source]:
    """Read a YAML file and those that it `extends:` (relative to the file that says so), outermost first: each is to be
    laid over those before it. Raises ConfigError for a file that cannot be read, is not YAML, holds nothing, repeats a
    key, or extends itself, and FileNotFoundError for one that is not there."""
    path = Path(path)
    if path.resolve() in (file.resolve() for file in below):
        chain = " -> ".join(str(file) for file in (*below, path))
        raise ConfigError(f"{path}: extends itself ({chain}); break the circle")
    source = read_file(path)
    if "extends" not in source.values:
        return [source]
    parent, place = source.values.pop("extends"), source.origin(("extends",))
    if not isinstance(parent, str):
        raise ConfigError(f"{place}: extends is {parent!r}; it takes the path of one YAML file")
    try:
        return [*read_layers(path.parent / parent, (*below, path)), source]
    except FileNotFoundError as error:
        where = "a path is relative to the file that extends it"
        raise ConfigError(f"{place}: extends {parent}, but {error}: {where}") from None


def parse_setting(text: str) -> tuple[str, Any]:
    """Return the key and the value, which is YAML, of `--set key=value`. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}: expected key=value, such as --set method.sat.alpha=0.95")
    try:
        return key.strip(), _read_text(value, "value")[0]
    except ConfigError:
        raise ConfigError(f"--set {text}: the value {value!r} is not valid YAML; quote it") from None


def read_file(path: Path) -> Source:
    """Read one YAML file, its keys as text. Raises FileNotFoundError or ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        there = {file.stem: file for file in path.parent.glob("*.y*ml")} if path.parent.is_dir() else {}
        close = difflib.get_close_matches(path.stem, there, n=1, cutoff=0.6)
        hint = f"; did you mean {there[close[0]]}?" if close else ""
        raise FileNotFoundError(f"there is no file {path}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    if path.suffix == ".sh":
        told = "sat-slime init plugin brings a method into it; how its flags become a run: docs/launch.md"
        raise ConfigError(f'{path}: a script, not settings: {told}, "A launch script of slime"')
    value, origins = _read_text(text, str(path))
    if value in (None, {}, []):
        raise ConfigError(f"{path}: holds no settings: write some, such as `extends: base.yaml`")
    if not isinstance(value, dict):
        instead = "a list" if isinstance(value, list) else repr(value)
        raise ConfigError(f"{path}:1: expected settings `key: value`, found {instead}")
    return Source(value, origins)


class _Loader(yaml.SafeLoader):
    """SafeLoader whose numbers include `1e-4`, which YAML 1.1 takes for text, and which takes no aliases: a few lines
    of aliases of aliases would fill the memory."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            alias = self.peek_event()
            what = f"*{alias.anchor} stands for what is written elsewhere: write it out"
            raise yaml.MarkedYAMLError(problem=what, problem_mark=alias.start_mark)
        return super().compose_node(parent, index)


class Dumper(yaml.SafeDumper):
    """SafeDumper that puts text in quotes which these files would have for a number, such as a run's name `1e4`."""


for _either in (_Loader, Dumper):
    _either.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )


def _read_text(text: str, file: str) -> tuple[Any, dict[KeyPath, str]]:
    """Return the value of a YAML text, None where it is empty, and the place of every key. Everything that PyYAML
    raises, which is more than its own errors, becomes a ConfigError with file and line."""
    origins: dict[KeyPath, str] = {(): file}
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        return None if root is None else _value(root, (), loader, origins), origins
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{file}:{line}: not valid YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise ConfigError(f"{file}:{line}: the character U+{code:04X} is no text: the file is damaged") from None
    except RecursionError:
        raise ConfigError(f"{file}: not valid YAML: it is nested too deeply") from None


def _value(node: yaml.Node, path: KeyPath, loader: _Loader, origins: dict[KeyPath, str]) -> Any:
    """Return the value of a node, its keys as text, and note the places of these in `origins`."""
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, loader, origins[()])
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, str(number)), loader, origins) for number, item in enumerate(node.value)]
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        place = f"{origins[()]}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{place}: a key must be plain text")
        inner = (*path, key_node.value)
        if key_node.value in values:
            before = origins[inner].rpartition(":")[2]
            raise ConfigError(f"{place}: {'.'.join(inner)} is already set in line {before}; remove one of them")
        origins[inner] = place
        values[key_node.value] = _value(value_node, inner, loader, origins)
    return values


def _scalar(node: yaml.ScalarNode, loader: _Loader, file: str) -> Any:
    """Return its value. YAML 1.1 would read 010 as 8, and 1:30 as 90."""
    place = f"{file}:{node.start_mark.line + 1}"
    if node.tag.endswith((":int", ":float")) and (":" in node.value or re.match(r"[-+]?0[0-9_]+$", node.value)):
        base = 60 if ":" in node.value else 8
        what = f"{node.value} is a number of base {base}: write it in base 10, or in quotes if it is text"
        raise ConfigError(f"{place}: not valid YAML: {what}")
    try:
        return loader.construct_object(node)
    except (yaml.YAMLError, RecursionError):
        raise
    except Exception:  # PyYAML fails in ways of its own at `!!int ''`, `!!bool x` and `2026-13-45`
        kind = node.tag.rpartition(":")[2]
        raise ConfigError(f"{place}: not valid YAML: {node.value!r} is no {kind}") from None
