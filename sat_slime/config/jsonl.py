"""Files of one JSON object per line: written whole, read even when the last line was torn by a kill."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sat_slime.config.disk import naming


def to_json(row: Mapping[str, Any]) -> str:
    """Return one line of valid JSON: NaN and infinities, which JSON lacks, become null."""
    return json.dumps({key: _plain(value) for key, value in row.items()}, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)  # numpy and torch, scalars and arrays


def number(row: Mapping[str, Any], key: str, default: float = math.nan) -> float:
    """Return the number under `key`; `default` where there is none."""
    value = row.get(key)
    try:
        return float(value) if isinstance(value, (int, float)) else default
    except OverflowError:  # a damaged line may hold an integer of any length
        return default


def parse_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object that a text is; None where it is anything else."""
    try:
        value = json.loads(text, parse_constant=lambda name: None)  # NaN and infinities are no JSON
    except (ValueError, RecursionError):  # of integers of 4,300 digits, and of brackets, too
        return None
    return value if isinstance(value, dict) else None


def read_object(path: str | Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty where the file is missing, or holds anything else."""
    try:
        return parse_object(Path(path).read_bytes()) or {}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON-lines file; a missing file has none. Lines that are not a whole object are left out: a
    process that was killed can leave its last one torn. damaged_lines names the others."""
    return [row for _, row in _lines(path) if row is not None]


def damaged_lines(path: str | Path) -> list[int]:
    """Return the numbers of the lines, from 1, that are not a whole object. A last line that no newline ends is torn,
    or still being written, and not among them."""
    return [number for number, row in _lines(path) if row is None]


def _lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield each line's number and object, None where it is none; a last line without a newline only if it is whole."""
    path = Path(path)
    if not path.exists():
        return
    *lines, last = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate([*lines, last], 1):
        if (row := parse_object(line)) is not None:
            yield number, row
        elif number <= len(lines):
            yield number, None


def append_line(path: str | Path, text: str) -> None:
    """Adds a line in one write. After a torn line it begins one of its own. An OSError names the file."""
    line = (text + "\n").encode()
    with naming(path), open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        file.write(line)


def keep_rows(path: str | Path, keep: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Rewrite a JSON-lines file atomically with the rows that `keep` accepts, and return them."""
    path = Path(path)
    if not path.exists():
        return []
    rows = [row for row in read_rows(path) if keep(row)]
    write_atomically(path, "".join(to_json(row) + "\n" for row in rows))
    return rows


def write_atomically(path: str | Path, text: str | bytes) -> None:
    """Write a file so that it is never seen, nor left, half written. An OSError names the file."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path), open(temporary, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
