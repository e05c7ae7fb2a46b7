"""Scratch folders: the processes that use a folder hold it, and whoever makes the next one removes what nobody holds.

The hold is a lock of the kernel on the folder. It goes away with its last process, however that ends, and containers
that share a temporary folder see each other's. So a folder that a kill -9 left behind is known for certain.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "sat_slime-"
"""How the names of folders begin that nobody holds, such as that of a Ray, which may outlive its launcher."""
HELD = "sat_slime."
"""How those of scratch folders begin."""
LONGEST_PARENT = 107 - len("/sat_slime-01234567/ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")
"""The most bytes in the name of a temporary folder with room for a Ray: the kernel allows 107 in that of a socket."""
SHORT_PARENT = "/tmp"
SHARED_MEMORY = Path("/dev/shm")
"""The folder in which SGLang keeps 16 KB for each server, and 24 MiB for each group of an engine's ranks."""


@dataclass(frozen=True)
class Scratch:
    """A new folder in `temporary_folder`, for this user alone; `new_scratch` makes one."""

    path: Path
    hold: int
    """Descriptor of the folder, with the lock; a process that inherits it holds the folder too."""

    def remove(self) -> None:
        """Deletes the folder, and lets go of it."""
        remove_scratch(self.path)
        os.close(self.hold)


def temporary_folder() -> str:
    """Return the folder in which scratch folders are made: the temporary folder, or /tmp where its name is too long."""
    folder = tempfile.gettempdir()
    fits = len(os.fsencode(folder)) <= LONGEST_PARENT
    return folder if fits or not os.access(SHORT_PARENT, os.W_OK | os.X_OK) else SHORT_PARENT


def new_scratch() -> Scratch:
    """Makes a folder that this process holds, after removing those of ours that nobody holds."""
    remove_abandoned()
    # It is locked before it has its name, so that nobody ever sees one that is not held yet.
    unnamed = Path(tempfile.mkdtemp(prefix=f".{HELD}", dir=temporary_folder()))
    hold = os.open(unnamed, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(hold, fcntl.LOCK_EX)
    return Scratch(unnamed.rename(unnamed.with_name(unnamed.name[1:])), hold)


def remove_scratch(folder: Path) -> None:
    """Deletes a scratch folder and what its servers have in shared memory. What a process that is ending still writes
    goes with the next `remove_abandoned`."""
    remove_shared_memory(folder)
    shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned() -> None:
    """Deletes what dead processes have left: this user's scratch folders that nobody holds. They are known by the name
    and the mode that mkdtemp gives: a folder such as sat_slime.git is the user's own."""
    for folder in Path(temporary_folder()).glob(HELD + "[a-z0-9_]" * 8):
        with contextlib.suppress(OSError):  # somebody holds it, or it is no folder
            hold = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                status = os.fstat(hold)
                if status.st_uid == os.getuid() and status.st_mode & 0o777 == 0o700:
                    fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_scratch(folder)
            finally:
                os.close(hold)


def name_shared_memory(folder: Path) -> None:
    """Has SGLang name its files in shared memory after a scratch folder, so that `remove_shared_memory` finds them: it
    never deletes the one of a server, nor those with which ranks of an engine talk, where they are killed. A process
    calls this before it starts SGLang's server."""
    from sglang.srt.server_args import PortArgs

    with contextlib.suppress(ImportError):  # other versions of SGLang may not name them so
        from sglang.srt.utils import stale_shm_cleanup

        stale_shm_cleanup._SGL_SHM_PREFIX = f"sgl_shm_{folder.name}"

    init_new = PortArgs.init_new

    def init_named(*args: Any, **kwargs: Any) -> Any:
        ports = init_new(*args, **kwargs)
        ports.instance_id = f"{folder.name}_{os.getpid()}"
        return ports

    PortArgs.init_new = init_named


def remove_shared_memory(folder: Path) -> None:
    """Deletes what the servers of a scratch folder left in shared memory."""
    for prefix in ("sglang_loads", "sgl_shm"):
        for file in SHARED_MEMORY.glob(f"{prefix}_{folder.name}_*"):
            with contextlib.suppress(OSError):
                file.unlink()
