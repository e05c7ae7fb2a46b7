"""The rows of a data set, whatever its columns are called; never a whole file is in memory."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sat_slime.prompts import PromptError
from sat_slime.prompts.odd import odd_file

PROBLEM_COLUMNS = ("problem", "question", "prompt", "messages")
LABEL_COLUMNS = ("label", "ground_truth", "answer", "reward_model", "solution")
"""The label's column is the first of these that a set has. In `reward_model` the label is the `ground_truth`."""
_BATCH = 8192
_BOXED = re.compile(r"\\boxed\s*\{(.*)\}", re.DOTALL)


def read_pairs(path: Path) -> Iterator[tuple[int, Any, Any]]:
    """Yields the number from 1, the problem and the label of each row as they stand there; None where a row has none.

    Raises PromptError.
    """
    try:
        what = odd_file(path)
    except OSError as error:
        raise PromptError(f"{path} cannot be read: {error.strerror}") from error
    if what:
        raise PromptError(f"{path}: {what}")
    if path.suffix == ".parquet":
        yield from _parquet_pairs(path)
        return
    for number, row in read_jsonl(path):
        if not isinstance(row, dict):
            raise PromptError(f"{path}: line {number} is not a JSON object")
        problem, label = find_columns(tuple(row))
        yield number, row[problem] if problem else None, row[label] if label else None


def read_jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields the number and the content of each line that is not blank. Raises PromptError."""
    number = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, json.loads(line)
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: not UTF-8 after line {number}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise PromptError(f"{path}: line {number} is not JSON") from error
    except OSError as error:
        raise PromptError(f"{path} cannot be read: {error.strerror}") from error


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yields rows with these columns; default: all columns. Raises PromptError."""
    from pyarrow import ArrowException, parquet

    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=_BATCH, columns=columns):
            yield from batch.to_pylist()
    except (OSError, ArrowException) as error:
        raise PromptError(f"{path} cannot be read as parquet: {str(error).splitlines()[0]}") from error


@functools.lru_cache(maxsize=64)
def find_columns(names: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Return the columns of the problem and of the label, in any letter case; None where there is none."""
    by_name = {name.lower(): name for name in names}

    def first(wanted: Iterable[str]) -> str | None:
        return next((by_name[name] for name in wanted if name in by_name), None)

    return first(PROBLEM_COLUMNS), first(LABEL_COLUMNS)


def problem_text(value: Any) -> str | None:
    """Return the problem in a value: a text, or the user's only message; None where it is neither."""
    if isinstance(value, list):
        said = [
            message.get("content") for message in value if isinstance(message, dict) and message.get("role") == "user"
        ]
        value = said[0] if len(said) == 1 else None
    return value if isinstance(value, str) and value.strip() else None


def label_text(value: Any) -> str | None:
    r"""Return the label in a value, as text, out of `reward_model`, a list of one, or \boxed; None where it is no
    label."""
    if isinstance(value, dict):
        value = value.get("ground_truth")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    boxed = _BOXED.fullmatch(text)
    return (boxed[1].strip() if boxed else text) or None


def _parquet_pairs(path: Path) -> Iterator[tuple[int, Any, Any]]:
    from pyarrow import ArrowException, parquet

    try:
        names = tuple(parquet.read_schema(path).names)
    except (OSError, ArrowException) as error:
        raise PromptError(f"{path} cannot be read as parquet: {str(error).splitlines()[0]}") from error
    problem, label = find_columns(names)
    if problem is None or label is None:
        raise PromptError(f"{path}: {missing_columns(names)}")
    for number, row in enumerate(read_parquet(path, [problem, label]), 1):
        yield number, row[problem], row[label]


def missing_columns(names: Iterable[str]) -> str:
    """Return the end of an error about a set that has no column for the problem or the label."""
    return (
        f"its columns are {', '.join(map(repr, names))}; a problem is looked for in {', '.join(PROBLEM_COLUMNS)}, "
        f"a label in {', '.join(LABEL_COLUMNS)}: rename one"
    )
