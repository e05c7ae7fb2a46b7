"""YAML files as nested settings that remember the file and line of every key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

KeyPath = tuple[str, ...]


class ConfigError(ValueError):
    """Faults of a configuration, each one line that names the place, the key, the value and the remedy."""

    def __init__(self, errors: Sequence[str]):
        self.errors = list(errors)
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
        self.values = merged(self.values, child.values)
        self.origins = {**self.origins, **child.origins}


def merged(base: Any, child: Any) -> Any:
    """Return `child` laid over `base`: sections merge key by key, anything else is replaced."""
    if not (isinstance(base, Mapping) and isinstance(child, Mapping)):
        return child
    return {**base, **{key: merged(base.get(key), value) for key, value in child.items()}}


class _Loader(yaml.SafeLoader):
    """SafeLoader whose numbers include `1e-4`, which YAML 1.1 takes for text."""


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same in C, where PyYAML has it: it takes a tenth of the time, and says less of what is wrong."""


for _loader in (_Loader, _FastLoader):
    _loader.add_implicit_resolver(
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
    """Return `text` as YAML, for `--set key=text`. Raises ConfigError."""
    with _document(text, "value", _Loader) as (loader, root):
        return None if root is None else _constructed(loader, root, "value")


def plain_values(path: Path) -> dict[str, Any]:
    """Return the values of a YAML file that a run left, its keys as text. Raises OSError or ConfigError."""
    return _read_file(path, _FastLoader).values


MOST_VALUES = 100_000
"""A file may have so many values, each counted as often as its aliases repeat it: a few lines of aliases of aliases
would fill the memory."""


@contextmanager
def _document(text: str, file: str, loader_class: type) -> Iterator[tuple[Any, yaml.Node | None]]:
    """Yield a loader and the root of the document. Inside and here, everything that PyYAML raises, which is more than
    its own errors, becomes a ConfigError with file and line."""
    loader = None
    try:
        loader = loader_class(text)
        root = loader.get_single_node()
        if root is not None:
            _count(root, file, {})
        yield loader, root
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError([f"{file}:{line}: not valid YAML: {error.problem or error.context}"]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise ConfigError([f"{file}:{line}: the character U+{code:04X} is no text: the file is damaged"]) from None
    except RecursionError:
        raise ConfigError([f"{file}: not valid YAML: it is nested too deeply"]) from None
    finally:
        if loader is not None:
            loader.dispose()


def _count(node: yaml.Node, file: str, counts: dict[int, int]) -> int:
    """Return the values in a node. counts: of the nodes that were counted, by their ids, 0 while one is. Raises
    ConfigError for more than MOST_VALUES, and for an alias inside what it stands for."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if (known := counts.get(id(node))) is not None:
        if not known:
            raise ConfigError([f"{file}:{node.start_mark.line + 1}: an alias stands inside what it stands for"])
        return known
    counts[id(node)] = 0
    inner = (part for entry in node.value for part in (entry if isinstance(entry, tuple) else (entry,)))
    count = 1 + sum(_count(part, file, counts) for part in inner)
    if count > MOST_VALUES:
        line = node.start_mark.line + 1
        raise ConfigError([f"{file}:{line}: with its aliases written out this has more than {MOST_VALUES:,} values"])
    counts[id(node)] = count
    return count


def _constructed(loader: Any, node: yaml.Node, file: str) -> Any:
    try:
        return loader.construct_object(node, deep=True)
    except (yaml.YAMLError, RecursionError):
        raise
    except Exception:  # PyYAML fails in ways of its own at `!!int ''`, `!!bool x` and `2026-13-45`
        kind = node.tag.rpartition(":")[2]
        shown = repr(node.value) if isinstance(node, yaml.ScalarNode) else "this"
        raise ConfigError([f"{file}:{node.start_mark.line + 1}: not valid YAML: {shown} is no {kind}"]) from None


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


def _read_file(path: Path, loader_class: type = _Loader) -> Source:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}{_similar_file(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError([f"{path}: cannot be read: {reason}"]) from None
    with _document(text, str(path), loader_class) as (loader, root):
        source = Source({}, {(): str(path)})
        if root is None or root.tag == "tag:yaml.org,2002:null" or root.value == []:
            raise ConfigError([f"{path}: holds no settings: write some, such as `extends: base.yaml`"])
        if not isinstance(root, yaml.MappingNode):
            instead = repr(root.value) if isinstance(root, yaml.ScalarNode) else "a list"
            raise ConfigError([f"{path}:1: expected settings `key: value`, found {instead}"])
        source.values = _mapping(loader, root, (), source.origins, str(path))
        return source


def _mapping(
    loader: Any, node: yaml.MappingNode, path: KeyPath, origins: dict[KeyPath, str], file: str
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
            values[inner[-1]] = _constructed(loader, value_node, file)
    return values


def _similar_file(path: Path) -> str:
    there = {file.stem: file for file in path.parent.glob("*.y*ml")} if path.parent.is_dir() else {}
    close = difflib.get_close_matches(path.stem, there, n=1, cutoff=0.6)
    return f"; did you mean {there[close[0]]}?" if close else ""
