"""YAML files as nested settings that remember the file and line of every key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

KeyPath = tuple[str, ...]


class ConfigError(ValueError):
    """Faults of a configuration, each one line that names the place, the key, the value and the remedy."""

    def __init__(self, errors: Sequence[str], rest: Any = None, faulty: Sequence[KeyPath] = ()):
        """rest: the settings without the faulty ones, where they are sound; faulty: where those are."""
        self.errors = list(errors)
        self.rest, self.faulty = rest, tuple(faulty)
        super().__init__("\n".join(self.errors))


@dataclass
class Source:
    """Nested settings, and where each was written."""

    values: dict[str, Any]
    origins: dict[KeyPath, str] = field(default_factory=dict)
    """Place of each key path, such as `configs/x.yaml:12`; the empty path is the file itself."""

    def origin(self, path: KeyPath) -> str:
        """Return where `path` was written, or its nearest parent that was written anywhere."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, "config")

    def update(self, child: Source) -> None:
        """Lay `child` over this one: sections merge key by key, anything else is replaced."""
        self.values = _merge(self.values, child.values)
        self.origins = {**self.origins, **child.origins}


def _merge(base: Any, child: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(child, Mapping)):
        return child
    return {**base, **{key: _merge(base.get(key), value) for key, value in child.items()}}


class _Loader(yaml.SafeLoader):
    """SafeLoader whose numbers include `1e-4`, which YAML 1.1 takes for text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    """Refuse the numbers that YAML 1.1 reads as others: 010 as 8, and 1:30 as 90."""
    if re.match(r"[-+]?0[0-9_]+$", node.value) or ":" in node.value:
        what = "base 8" if ":" not in node.value else "base 60"
        text = f"{node.value} is a number of {what}: write it in base 10, or in quotes if it is text"
        raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)
    if node.tag.endswith("float"):
        return loader.construct_yaml_float(node)
    return loader.construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)


def parse_value(text: str) -> Any:
    """Return `text` as YAML, for `--set key=text`. Raises yaml.YAMLError."""
    return yaml.load(text, _Loader)


def read_layers(path: str | Path, _below: tuple[Path, ...] = ()) -> list[Source]:
    """Read a YAML file and the files that it `extends:` (relative to the file that says so), outermost first: each
    is to be laid over those before it.

    Raises ConfigError for a file that cannot be read, is not YAML, holds nothing, repeats a key, or extends itself.
    """
    path = Path(path)
    if path.resolve() in (file.resolve() for file in _below):
        chain = " -> ".join(str(file) for file in (*_below, path))
        raise ConfigError([f"{path}: extends itself ({chain}); break the circle"])
    source = _read_file(path)
    if "extends" not in source.values:
        return [source]
    parent, place = source.values.pop("extends"), source.origin(("extends",))
    if not isinstance(parent, str):
        raise ConfigError([f"{place}: extends is {parent!r}; it takes the path of one YAML file"])
    try:
        return [*read_layers(path.parent / parent, (*_below, path)), source]
    except FileNotFoundError as error:
        where = "a path is relative to the file that extends it"
        raise ConfigError([f"{place}: extends {parent}, but {error}: {where}"]) from None


def _read_file(path: Path) -> Source:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}{_similar_file(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError([f"{path}: cannot be read: {reason}"]) from None
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        source = Source({}, {(): str(path)})
        if root is None or root.tag == "tag:yaml.org,2002:null" or root.value == []:
            raise ConfigError([f"{path}: holds no settings: write some, such as `extends: base.yaml`"])
        if not isinstance(root, yaml.MappingNode):
            instead = repr(root.value) if isinstance(root, yaml.ScalarNode) else "a list"
            raise ConfigError([f"{path}:1: expected settings `key: value`, found {instead}"])
        source.values = _mapping(loader, root, (), source.origins, str(path))
        return source
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError([f"{path}:{line}: not valid YAML: {error.problem or error.context}"]) from None
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError([f"{path}: not valid YAML: {' '.join(str(error).split())}"]) from None
    finally:
        loader.dispose()


def _mapping(
    loader: _Loader, node: yaml.MappingNode, path: KeyPath, origins: dict[KeyPath, str], file: str
) -> dict[str, Any]:
    """Return the values below `node`; notes the line of each key in `origins`."""
    values: dict[str, Any] = {}
    written: dict[str, int] = {}
    for key_node, _ in node.value:
        key, line = key_node.value, key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError([f"{file}:{line}: a key must be plain text"])
        if key in written:
            dotted = ".".join((*path, key))
            raise ConfigError([f"{file}:{line}: {dotted} is already set in line {written[key]}; remove one of them"])
        written[key] = line
    loader.flatten_mapping(node)  # after the check: `<<` may repeat a key on purpose
    for key_node, value_node in node.value:
        inner = (*path, str(key_node.value))
        origins[inner] = f"{file}:{key_node.start_mark.line + 1}"
        if isinstance(value_node, yaml.MappingNode):
            values[inner[-1]] = _mapping(loader, value_node, inner, origins, file)
        else:
            values[inner[-1]] = loader.construct_object(value_node, deep=True)
    return values


def _similar_file(path: Path) -> str:
    there = {file.stem: file for file in path.parent.glob("*.y*ml")} if path.parent.is_dir() else {}
    close = difflib.get_close_matches(path.stem, there, n=1, cutoff=0.6)
    return f"; did you mean {there[close[0]]}?" if close else ""
