"""Places of a data set: files on this machine, or a repository of the Hugging Face hub."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from sat_slime.prompts import PromptError

SUFFIXES = (".parquet", ".jsonl")
_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)((?:/[\w.-]+)*)(?:@([\w./-]+))?")
_INSTALL = "pip install '.[data]' in a checkout"


@dataclass(frozen=True)
class Source:
    """A data set as it was named; nothing is read or downloaded yet."""

    given: str
    path: Path | None = None
    """A file or a folder on this machine; None: the set is on the hub."""
    repository: str = ""
    folder: str = ""
    """A folder of the repository; empty: all of it."""
    revision: str = "main"


@dataclass(frozen=True)
class Files:
    """A data set's files on this machine, in the order in which they are read."""

    source: Source
    commit: str | None
    """The commit of the hub's repository; None: the set is on this machine."""
    root: Path
    paths: tuple[Path, ...]

    def name(self, path: Path) -> str:
        """Return a file's name within the data set."""
        return path.relative_to(self.root).as_posix() if path != self.root else path.name


def find_source(given: str) -> Source:
    """Return the source at a path, or under an id of the hub: OWNER/NAME[/FOLDER][@REVISION]. Raises PromptError."""
    path = Path(given).expanduser()
    if path.exists():
        if any(file.suffix == ".parquet" for file in _data_files(path)):
            _need("pyarrow", "to read parquet files")
        return Source(given, path=path)
    match = _HUB_ID.fullmatch(given)
    if match is None or given.endswith(SUFFIXES):
        raise PromptError(f"{given}: there is no such file or folder, and it is no id of the hub such as OWNER/NAME")
    _need("huggingface_hub", f"to download {given}")
    _need("pyarrow", "to read parquet files")
    return Source(given, None, match[1], match[2].strip("/"), match[3] or "main")


def fetch(source: Source) -> Files:
    """Return a source's files; downloads those of the hub that its cache does not have. Raises PromptError."""
    if source.path is not None:
        return Files(source, None, source.path, _data_files(source.path))
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
    return Files(source, snapshot.name, root, _data_files(root))


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


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
        raise PromptError(f"{module} is not installed, which is needed {purpose}: {_INSTALL}")
