"""Scratch folders: each is held by the processes that use it, and what nobody holds any more the next one removes.

The hold is a lock of the kernel, which goes with its last process however that ends, and which containers that share a
temporary folder see of each other. So a folder that a kill -9 left behind is known for certain.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "sat_slime-"
HOLD = "held"
"""The locked file of a scratch folder. One without it is none of ours to remove: a Ray that outlives its launcher has
such a folder too."""
SHARED_MEMORY = Path("/dev/shm")
"""Where SGLang keeps 16 KB for each server."""


@dataclass(frozen=True)
class Scratch:
    """A new folder in the temporary folder, for this user alone; `new_scratch` makes one."""

    path: Path
    hold: int
    """Descriptor of the lock; a process that inherits it holds the folder too."""

    def remove(self) -> None:
        """Let go of the folder, and delete it."""
        remove_scratch(self.path)
        os.close(self.hold)


def new_scratch() -> Scratch:
    """A folder that this process holds, after removing those of ours that nobody does."""
    remove_abandoned()
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    # Locked before it has its name, so that nobody ever sees a hold that is not held yet.
    hold = os.open(path / f"{HOLD}.part", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(hold, fcntl.LOCK_EX)
    (path / f"{HOLD}.part").rename(path / HOLD)
    return Scratch(path, hold)


def name_shared_memory(folder: Path) -> None:
    """In a process that is about to start SGLang's server: SGLang never deletes its file in shared memory, and names it
    by a number that it rolls. By the folder's name in its own, `remove_shared_memory` finds it."""
    from sglang.srt.server_args import PortArgs

    init_new = PortArgs.init_new

    def init_named(*args: Any, **kwargs: Any) -> Any:
        ports = init_new(*args, **kwargs)
        ports.instance_id = f"{folder.name}_{os.getpid()}"
        return ports

    PortArgs.init_new = init_named


def remove_shared_memory(folder: Path) -> None:
    """Delete what the servers of a scratch folder left there."""
    for file in SHARED_MEMORY.glob(f"sglang_loads_{folder.name}_*"):
        with contextlib.suppress(OSError):
            file.unlink()


def remove_scratch(folder: Path) -> None:
    """Delete a scratch folder and what its servers have in shared memory.

    What cannot be deleted, or is written meanwhile by a process that is ending, stays in the folder, and so does the
    hold: `remove_abandoned` takes them once nobody has it.
    """
    remove_shared_memory(folder)
    with contextlib.suppress(OSError):
        for entry in [path for path in folder.iterdir() if path.name != HOLD]:
            _delete(entry)
        _remove_held_alone(folder)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _remove_held_alone(folder: Path) -> None:
    """Remove a folder that holds no more than its hold. Raises OSError, and leaves both, where it holds more."""
    aside = folder.with_name(f"{folder.name}.{HOLD}")  # back again, where something is written just now
    (folder / HOLD).rename(aside)
    try:
        os.rmdir(folder)
    except OSError:
        aside.rename(folder / HOLD)
        raise
    aside.unlink()


def remove_abandoned() -> None:
    """Delete what processes that are dead have left: folders of this user, of our name, with a hold that nobody has."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    """Raises OSError where somebody holds it, or where it is none of ours."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return
    hold = os.open(folder / HOLD, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_scratch(folder)
    finally:
        os.close(hold)
