"""Files on disk: errors of a full disk, or of a path that cannot be written, name the path; folders are there in full,
with the checksums of their files, or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)


def disk_is_full(error: BaseException) -> int | None:
    """Return the number of a full disk or quota that an error has, or tells in its first line: further lines may quote
    logs. None: it is of something else."""
    told = str(error).partition("\n")[0]
    return next((n for n in _FULL if getattr(error, "errno", None) == n or os.strerror(n) in told), None)


def is_replaceable(folder: Path, marks: Sequence[str]) -> bool:
    """Return whether a folder may be deleted to be made anew: it is not there, is empty, or holds all of `marks`, by
    which a folder of ours is known. A link is none, since what it leads to may be anything."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        return False
    return not folder.exists() or not any(folder.iterdir()) or all((folder / mark).exists() for mark in marks)


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Have an OSError inside that names no file, such as one of writing, flushing and closing, name `path` afterwards.
    So does a full disk that safetensors, another process or the copy of a folder tells: its error becomes an OSError.
    Only writes below `path` belong inside, since anything else that fails would name it too."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None) or disk_is_full(error)
        # shutil.Error tells the errors of a whole folder, as a list of tuples.
        names_a_file = getattr(error, "filename", None) or f"{os.strerror(number or 0)}: '" in str(error)
        if number is None or (names_a_file and not isinstance(error, shutil.Error)):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


NAME = "SHA256SUMS"
"""The checksums of a folder's files, in the form that `sha256sum -c SHA256SUMS` checks too."""
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_TOLD = 3
"""Files that a line about a folder's faults names; the rest it counts."""


def sha256(path: Path) -> str:
    """Return the checksum of a file, in hexadecimal digits. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def write_checksums(folder: Path) -> None:
    """Writes SHA256SUMS: a line for every file that is in the folder and below."""
    lines = (f"{sha256(folder / name)}  {name}\n" for name in _files(folder))
    (folder / NAME).write_text("".join(lines), encoding="utf-8")


def checksum_faults(folder: Path) -> dict[str, str]:
    """Return what is wrong with each file that is not as when its checksum was written, by name; empty: nothing is."""
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
    there = set(_files(folder))
    faults = dict.fromkeys(there - known.keys(), f"has no checksum in {NAME}")
    faults |= dict.fromkeys(known.keys() - there, "is missing")  # never a path that leads out of the folder
    for name in known.keys() & there:
        try:
            if sha256(folder / name) != known[name]:
                faults[name] = "does not match its checksum"
        except OSError as error:
            faults[name] = f"cannot be read ({error.strerror or error})"
    return dict(sorted(faults.items()))


def in_words(faults: Mapping[str, str]) -> str:
    """Return what `checksum_faults` found, in a line; of many files the first ones."""
    words = [f"{name} {fault}" for name, fault in faults.items()]
    more = len(words) - _TOLD
    return ", ".join(words[:_TOLD]) + (f" and {more} more file{'s' * (more > 1)}" if more > 0 else "")


@contextlib.contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """Yield a folder to write into, which becomes `folder` when the block ends: with SHA256SUMS, flushed to the disk
    and renamed. If the block fails, it goes away, and what `folder` was before stays. Raises OSError."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        write_checksums(part)
        for path in (*part.rglob("*"), part):
            _flush(path)
        remove_at_once(folder)
        os.replace(part, folder)
        _flush(folder.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def remove_at_once(folder: Path) -> None:
    """Removes a folder, if it is there. Renamed first, it is never seen half removed under its own name."""
    if folder.exists():
        gone = folder.with_name(f"{folder.name}.gone.part")
        shutil.rmtree(gone, ignore_errors=True)
        os.replace(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)  # NFS keeps what somebody has open, such as mapped weights


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(folder: Path) -> list[str]:
    """Return the names of the files that have checksums. Hidden ones are of the file system or of other programs."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if name != NAME and "/." not in f"/{name}")
