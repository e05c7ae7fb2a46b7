"""A data set: files on this machine or a repository of the Hugging Face hub, and its rows, whatever their columns are
called; never a whole file is in memory."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sat_slime.prompts import PromptError
from sat_slime.prompts.text import odd_file

SUFFIXES = (".parquet", ".jsonl")
_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)((?:/[\w.-]+)*)(?:@([\w./-]+))?")
PROBLEM_COLUMNS = ("problem", "question", "prompt", "messages")
LABEL_COLUMNS = ("label", "ground_truth", "answer", "reward_model", "solution")
"""The label's column is the first of these that a set has. In `reward_model` the label is the `ground_truth`."""
LOOKED_FOR = (
    f"a problem is looked for in {', '.join(PROBLEM_COLUMNS)}, a label in {', '.join(LABEL_COLUMNS)}: rename a column"
)
_BATCH = 8192
_BOXED = re.compile(r"\\boxed\s*\{(.*)\}", re.DOTALL)


@dataclass(frozen=True)
class Source:
    """A data set as it was named, and its files once they are fetched."""

    given: str
    path: Path | None = None
    """A file or a folder on this machine; None: the set is on the hub."""
    repository: str = ""
    folder: str = ""
    """A folder of the repository; empty: all of it."""
    revision: str = "main"
    commit: str | None = None
    """The commit of the hub's repository."""
    root: Path = Path()
    files: tuple[Path, ...] = ()
    """In the order in which they are read."""

    def name(self, path: Path) -> str:
        """Return a file's name within the data set."""
        return path.relative_to(self.root).as_posix() if path != self.root else path.name


def find_source(given: str) -> Source:
    """Return the source at a path, or under an id of the hub: OWNER/NAME[/FOLDER][@REVISION]. Raises PromptError."""
    path = Path(given).expanduser()
    if path.exists():
        files = _data_files(path)
        if any(file.suffix == ".parquet" for file in files):
            _need("pyarrow", "to read parquet files")
        return Source(given, path, root=path, files=files)
    match = _HUB_ID.fullmatch(given)
    if match is None or given.endswith(SUFFIXES):
        raise PromptError(f"{given}: there is no such file or folder, and it is no id of the hub such as OWNER/NAME")
    _need("huggingface_hub", f"to download {given}")
    _need("pyarrow", "to read parquet files")
    return Source(given, None, match[1], match[2].strip("/"), match[3] or "main")


def fetch(source: Source) -> Source:
    """Return a source with its files; downloads those of the hub that its cache does not have. Raises PromptError."""
    if source.path is not None:
        return source
    from huggingface_hub import snapshot_download

    within = f"{source.folder}/" if source.folder else ""
    try:
        # Only data is downloaded: no script of a repository reaches this machine. The folder is named after the commit.
        snapshot = Path(
            snapshot_download(
                source.repository,
                repo_type="dataset",
                revision=source.revision,
                allow_patterns=[f"{within}*{suffix}" for suffix in SUFFIXES],
            )
        )
    except Exception as error:  # the hub's own errors, and those of whichever HTTP library it uses
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise PromptError(
            f"{source.given} is not here and did not come from the hub ({type(error).__name__}: {reason}); download it "
            f"elsewhere with `hf download --repo-type dataset {source.repository} --local-dir FOLDER` and name FOLDER"
        ) from error
    root = snapshot / source.folder
    return replace(source, commit=snapshot.name, root=root, files=_data_files(root))


def _data_files(path: Path) -> tuple[Path, ...]:
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise PromptError(f"{path}: {' and '.join(SUFFIXES)} files are read: convert it")
        return (path,)
    readable = (
        file
        for file in path.rglob("*")
        # Hidden files are the hub's own notes on a download.
        if file.suffix in SUFFIXES and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not (files := tuple(sorted(readable))):
        raise PromptError(f"{path} holds no {' or '.join(SUFFIXES)} file: name one that does")
    return files


def _need(module: str, purpose: str) -> None:
    if importlib.util.find_spec(module) is None:
        install = "pip install '.[data]' in a checkout"
        raise PromptError(f"{module} is not installed, which is needed {purpose}: {install}")


def read_pairs(path: Path) -> Iterator[tuple[int, Any, Any]]:
    """Yields the number from 1, the problem and the label of each row as they stand there; None where a row has none.

    Raises PromptError.
    """
    try:
        if what := odd_file(path):
            raise PromptError(f"{path}: {what}")
        yield from _parquet_pairs(path) if path.suffix == ".parquet" else _jsonl_pairs(path)
    except OSError as error:
        raise PromptError(f"{path} cannot be read: {error.strerror}") from error


def _jsonl_pairs(path: Path) -> Iterator[tuple[int, Any, Any]]:
    number = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise PromptError(f"{path}: line {number} is not a JSON object")
                problem, label = find_columns(tuple(row))
                yield number, row[problem] if problem else None, row[label] if label else None
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: not UTF-8 after line {number}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise PromptError(f"{path}: line {number} is not JSON") from error


def _parquet_pairs(path: Path) -> Iterator[tuple[int, Any, Any]]:
    from pyarrow import ArrowException, parquet

    try:
        file = parquet.ParquetFile(path)
        problem, label = find_columns(tuple(file.schema_arrow.names))
        if problem is None or label is None:
            raise PromptError(f"{path}: its columns are {', '.join(file.schema_arrow.names)}: {LOOKED_FOR}")
        batches = file.iter_batches(batch_size=_BATCH, columns=[problem, label])
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
            yield number, row[problem], row[label]
    except (OSError, ArrowException) as error:
        raise PromptError(f"{path} cannot be read as parquet: {str(error).splitlines()[0]}") from error


@functools.lru_cache(maxsize=64)
def find_columns(names: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Return the columns of the problem and of the label, in any letter case; None where there is none."""
    by_name = {name.lower(): name for name in names}
    problem, label = (
        next((by_name[name] for name in wanted if name in by_name), None) for wanted in (PROBLEM_COLUMNS, LABEL_COLUMNS)
    )
    return problem, label


def problem_text(value: Any) -> str | None:
    """Return the problem in a value: a text, or the user's only message; None where it is neither."""
    if isinstance(value, list):
        said = [one.get("content") for one in value if isinstance(one, dict) and one.get("role") == "user"]
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
