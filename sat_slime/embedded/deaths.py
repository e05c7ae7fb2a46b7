"""The ends of a run's processes, in words; the watch over Ray's processes.

This module imports no engine.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sat_slime.config.exits import how_it_ended

RAY_PROCESSES = ("gcs_server", "raylet")
"""The processes without which Ray is lost, by name. Ray's other processes end with them, or Ray can do without them."""
LOOK_EVERY_S = 0.1
KNOCK_EVERY_S = 0.25
"""Seconds between two looks at whether the GCS takes connections."""
SETTLE_S = 2.0
"""Seconds in which Ray's death may still follow an actor's: a raylet that gets SIGTERM ends its actors first."""


def children(parent: int | None = None) -> dict[int, str]:
    """Return a process's children, zombies among them: process number to the program's name, cut to the 15 characters
    that the kernel keeps.

    Args:
        parent: default: this process.
    """
    return {pid: name for pid, name, _ in _children(os.getpid() if parent is None else parent)}


def dead_children(parent: int) -> Iterator[tuple[int, str, int]]:
    """Yield (process number, program's name, return code) of a process's children that have died and that it has not
    collected."""
    for pid, name, fields in _children(parent):
        with contextlib.suppress(ValueError, IndexError):
            if fields[0] == "Z":
                yield pid, name, os.waitstatus_to_exitcode(int(fields[49]))


def _children(parent: int) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (process number, program's name, what /proc/PID/stat has behind it) of a process's children."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            name, _, rest = (process / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            if int(fields[1]) == parent:
                yield int(process.name), name, fields


def is_ending(pid: int) -> bool:
    """Tells whether a process's first thread has ended, while its others may still run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def exit_code(pid: int) -> int | None:
    """Return the return code, as Popen tells it, of a child that has ended and was not collected; None while it lives.

    Raises:
        ChildProcessError: the child has been collected.
    """
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


class RayWatch:
    """Watches the children of this process without which Ray is lost, and tells when one dies.

    Ray's library in this process would go on for a minute without its GCS, and then end the process from C++, past
    every handler; without its raylet it calls its actors dead. A GCS that is told to end by SIGTERM closes its port and
    may then hang, so that counts as its death too.
    """

    gcs_address: str | None = None
    """HOST:PORT, once it is known."""

    def __init__(self, died: Callable[[str], None]) -> None:
        """died: is called once, from a thread of its own or in `end`, with a sentence: which process died, and how."""
        self._died = died
        self._processes: dict[str, tuple[int, int | None]] = {}
        """Process number by name, and a handle that tells of its end, or None where the kernel gives none."""
        self._knock_at = 0.0
        self._ends = select.poll()
        self._over = threading.Event()
        self._looking = threading.Lock()
        threading.Thread(target=self._watch, name="ray-watch", daemon=True).start()

    def settle(self) -> None:
        """Waits a moment for the death of one of Ray's processes: an actor that dies with it may be told first."""
        self._over.wait(SETTLE_S)

    def end(self) -> None:
        """Looks once more and stops: what ends from here on is meant to end."""
        self._look()
        self._over.set()
        with self._looking:
            for name in list(self._processes):
                self._forget(name)

    def _watch(self) -> None:
        while not self._over.is_set():
            self._ends.poll(LOOK_EVERY_S * 1000)  # a death ends the wait at once
            self._look()

    def _look(self) -> None:
        with self._looking:
            if self._over.is_set():
                return
            self._find()
            for name, (pid, _) in list(self._processes.items()):
                try:
                    code = exit_code(pid)
                except ChildProcessError:  # Ray collected it, and knows
                    self._forget(name)
                    continue
                if code is not None:
                    self._tell(f"Ray's {name} (process {pid}) {how_it_ended(code)}")
                    return
            if self._gcs_is_closed():
                self._tell(f"Ray's gcs_server (process {self._processes['gcs_server'][0]}) closed its port")

    def _gcs_is_closed(self) -> bool:
        now = time.monotonic()
        if "gcs_server" not in self._processes or self.gcs_address is None or now < self._knock_at:
            return False
        self._knock_at = now + KNOCK_EVERY_S
        return not _listens(self.gcs_address)

    def _tell(self, death: str) -> None:
        self._over.set()
        self._died(death)

    def _find(self) -> None:
        if len(self._processes) == len(RAY_PROCESSES):
            return
        for pid, name in children().items():
            if name in RAY_PROCESSES and name not in self._processes:
                handle = None
                with contextlib.suppress(OSError):  # else its death is told at the next look
                    handle = os.pidfd_open(pid)
                    self._ends.register(handle, select.POLLIN)
                self._processes[name] = pid, handle

    def _forget(self, name: str) -> None:
        _, handle = self._processes.pop(name)
        if handle is not None:
            self._ends.unregister(handle)
            os.close(handle)


def _listens(address: str) -> bool:
    """Tells whether HOST:PORT takes connections. A process that is stopped takes them too: they wait."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        pass
    return True


def ray_death_before(driver: int) -> str | None:
    """Waits until the driver, a child of this process, has ended, and leaves it to be collected.

    Returns:
        How a process of the driver's Ray died before it, as a sentence; None where none did. Ray's library may end the
        driver from C++ while it starts, before the driver's own watch can tell. Where the kernel has no handles of
        processes this does not wait, and returns None.
    """
    ends, death = select.poll(), None
    rays: dict[int, tuple[int, str]] = {}
    with contextlib.ExitStack() as handles, contextlib.suppress(OSError):
        own = _handle(driver, ends, handles)
        while True:
            ended = {
                handle for handle, _ in ends.poll(None if len(rays) == len(RAY_PROCESSES) else LOOK_EVERY_S * 1000)
            }
            for handle in ended - {own}:
                ends.unregister(handle)
                death = death or _ray_death(*rays[handle], parents=(driver, os.getpid()))
            if own in ended:
                break
            for pid, name in children(driver).items():
                if name in RAY_PROCESSES and (pid, name) not in rays.values():
                    rays[_handle(pid, ends, handles)] = pid, name
    return death


def _handle(pid: int, ends: select.poll, handles: contextlib.ExitStack) -> int:
    handle = os.pidfd_open(pid)
    handles.callback(os.close, handle)
    ends.register(handle, select.POLLIN)
    return handle


def _ray_death(pid: int, name: str, parents: tuple[int, ...]) -> str:
    codes = {dead: code for parent in parents for dead, _, code in dead_children(parent)}
    return f"Ray's {name} (process {pid}) {how_it_ended(codes[pid]) if pid in codes else 'died'}"
