"""SHA256SUMS: the checksums of a folder's files, in the form that `sha256sum -c SHA256SUMS` checks too."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

NAME = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_BLOCK_BYTES = 2**20


def sha256(path: Path) -> str:
    """The checksum of a file, in hexadecimal digits. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def write_checksums(folder: Path) -> None:
    """Writes SHA256SUMS: a line for every file that is in the folder and below."""
    (folder / NAME).write_text("".join(f"{sha256(folder / name)}  {name}\n" for name in _files(folder)))


def checksum_faults(folder: Path, below: str = "") -> dict[str, str]:
    """What is wrong with each file that is not as it was when its checksum was written, by the file's name. Empty: the
    folder is whole.

    Args:
        below: look only at files whose names in the folder begin so.
    """
    try:
        lines = (folder / NAME).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {NAME: "is missing"}
    except (OSError, UnicodeDecodeError) as error:
        return {NAME: f"cannot be read ({error})"}
    matches = [_LINE.fullmatch(line) for line in lines]
    if not lines or None in matches:
        return {NAME: "is damaged: it is empty" if not lines else f"is damaged in line {matches.index(None) + 1}"}
    known = {match[2]: match[1] for match in matches if match}
    names = sorted(name for name in {*known, *_files(folder)} if name.startswith(below))
    return {name: fault for name in names if (fault := _fault(folder, name, known.get(name)))}


def _fault(folder: Path, name: str, checksum: str | None) -> str | None:
    """checksum: as it was written."""
    if checksum is None:
        return f"has no checksum in {NAME}"
    if name not in _files(folder):  # never a path that leads out of the folder
        return "is missing"
    try:
        return None if sha256(folder / name) == checksum else "does not match its checksum"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"


def _files(folder: Path) -> list[str]:
    """Names of the files that have checksums. Hidden ones are of the file system or of other programs."""
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(name) for name in names if str(name) != NAME and not name.name.startswith("."))
