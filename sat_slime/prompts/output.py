"""The folder of prepared prompts: it appears whole or not at all, with a manifest that says how it was made, and how to
make the same again."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sat_slime
from sat_slime.prompts import PromptError
from sat_slime.prompts.build import Gathered
from sat_slime.prompts.locations import sha256

MANIFEST = "manifest.json"
PACKAGES = ("huggingface-hub", "pyarrow", "math-verify", "transformers")


def check_out(out: Path, overwrite: bool) -> None:
    """Raises PromptError where `out` is in the way, or cannot be made."""
    if out.exists() and not out.is_dir():
        raise PromptError(f"{out} is a file: name a folder with --out")
    if out.is_dir() and any(out.iterdir()):
        if not (out / MANIFEST).is_file():
            raise PromptError(f"{out} is not empty and holds no prepared prompts: name another --out")
        if not overwrite:
            raise PromptError(f"{out} holds prepared prompts: give --overwrite, or name another --out")
    parent = out.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not os.access(out if out.is_dir() else parent, os.W_OK | os.X_OK):
        raise PromptError(f"{out} cannot be written: name another --out")


@contextlib.contextmanager
def staged(out: Path) -> Iterator[Path]:
    """Yield a folder to write into, which becomes `out` at the end, or after an error is gone.

    Files of an earlier `out` are replaced one by one; meanwhile it has no manifest.
    """
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.absolute().parent))
    try:
        yield stage
        stage.chmod(0o777 & ~_umask())
        if out.is_dir():
            with contextlib.suppress(FileNotFoundError):
                (out / MANIFEST).unlink()
            for file in sorted(stage.iterdir(), key=lambda file: file.name == MANIFEST):
                os.replace(file, out / file.name)
        else:
            os.rename(stage, out)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


@dataclass(frozen=True)
class Written:
    """A file of the folder."""

    rows: int
    bytes: int
    sha256: str


def write_jsonl(path: Path, rows: Iterable[Any]) -> Written:
    """Writes one JSON value a line; all are on the disk when this returns."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
        _flush(file)
    return Written(count, path.stat().st_size, sha256(path))


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file that people can read; it is on the disk when this returns."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
        _flush(file)


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def manifest(
    gathered: Sequence[Gathered], settings: Mapping[str, Any], different: Sequence[str], written: Mapping[str, Written]
) -> dict[str, Any]:
    """Return the manifest of a folder. It holds no time: the same input gives the same bytes.

    Args:
        different: in what the sets differ from the paper's.
    """
    versions = {"sat-slime": sat_slime.__version__, "python": platform.python_version()}
    return {
        "schema": "sat_slime.prompts/1",
        "versions": versions | {package: _version(package) for package in PACKAGES},
        "settings": dict(settings),
        "differs_from_paper": list(different),
        "sources": [_source(gathered_set) for gathered_set in gathered],
        "files": {name: dataclasses.asdict(file) for name, file in written.items()},
    }


def _source(gathered_set: Gathered) -> dict[str, Any]:
    files, source = gathered_set.files, gathered_set.files.source
    hub = {"repository": source.repository, "revision": source.revision, "commit": files.commit}
    return {
        "name": gathered_set.data_set.name,
        "given": source.given,
        **({"path": str(source.path.absolute())} if source.path else hub),
        "files": [
            {"name": files.name(path), "bytes": path.stat().st_size, "sha256": sha256(path)} for path in files.paths
        ],
        "counts": {name: count for name, count in dataclasses.asdict(gathered_set.account).items() if name != "name"},
        "paper": {gathered_set.data_set.counted: gathered_set.data_set.expected},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
