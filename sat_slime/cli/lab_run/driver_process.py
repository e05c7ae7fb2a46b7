"""The driver of a lab run: a process of its own, and the launcher's watch over it.

A driver may end without a word, as where the kernel kills it for want of memory. The launcher outlives it, imports no
engine, tells how it ended, and leaves no process of the run behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from sat_slime.config.exits import ENDING, heard, how_it_ended, leave_terminal

FORWARDED = ENDING
GRACE_S = 2.0
"""Seconds in which what the driver left may end on its own: servers clean up after themselves."""
KILL_S = 30.0
"""Seconds in which the kernel may end what was killed; a process that hangs longer is left."""
LOOK_EVERY_S = 0.05
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class Outcome:
    """The end of the driver's work."""

    status: str
    """finished, interrupted or failed."""
    error: str | None = None
    dead: bool = False
    """The driver ended without a word, so its log does not say why."""


def watched(work: Callable[[], Outcome]) -> Outcome:
    """Do the work in a child process and wait for it. FORWARDED signals go on to it.

    It dies with this process, and stops with it (Ctrl-Z). When it has ended, so has everything that it started.
    """
    before = set(children())
    record = os.memfd_create("sat_slime-outcome")
    try:
        with _adopting_orphans(), _passing_signals_on() as relay:
            parent = os.getpid()
            try:
                child = os.fork()
            except OSError as error:
                return Outcome("failed", f"{error.strerror}: no process could be started for the run; stop other work")
            if child == 0:
                _be_the_driver(work, record, parent, relay)
            relay.begin(child)
            _, status = os.waitpid(child, 0)
            relay.end()  # a signal from here on comes too late to change how the run ended
            _end_what_is_left(before)
            outcome = _read(record)
        return outcome or _without_a_word(child, os.waitstatus_to_exitcode(status))
    finally:
        os.close(record)


def _be_the_driver(work: Callable[[], Outcome], record: int, parent: int, relay: _Relay) -> NoReturn:
    def end(outcome: Outcome) -> NoReturn:
        with contextlib.suppress(OSError):
            os.pwrite(record, json.dumps(asdict(outcome)).encode(), 0)
        os._exit(0)

    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # the launcher died before the kernel would have told
        os.setpgid(0, 0)  # Ctrl-C is the launcher's, which passes it on: once, however it came
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a terminal of `stty tostop` would stop it at its first line
        relay.put_back()
        outcome = work()
        sys.stdout.flush()
        sys.stderr.flush()
        end(outcome)
    except (KeyboardInterrupt, SystemExit):
        end(Outcome("interrupted"))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # nothing that this process began before the fork is the driver's to end


def _read(record: int) -> Outcome | None:
    text = os.pread(record, os.fstat(record).st_size, 0)
    return Outcome(**json.loads(text)) if text else None


def _without_a_word(child: int, code: int) -> Outcome:
    driver = f"the run's driver (process {child}) {how_it_ended(code)}"
    return Outcome("failed", f"{driver} and could not say why", dead=True)


class _Relay:
    """The launcher's handlers of FORWARDED and SIGTSTP, which pass them on to the driver.

    They are there before the driver is, and keep what comes until then. To block the signals meanwhile would not do:
    that is of one thread, and the kernel gives a signal to any other, such as one of torch's.
    """

    def __init__(self) -> None:
        self._kept: list[int] = []
        """Signals that came before there was a driver."""
        self._living: list[int] = []
        """The driver, until it has ended."""
        self._begun = False
        self._previous = {number: signal.signal(number, self._forward) for number in heard(FORWARDED)}
        # The driver starts with them blocked: they wait for the handlers that it puts back.
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)

    def begin(self, child: int) -> None:
        """From now on signals go to the driver, and first those that came before."""
        self._previous[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stop)
        self._living.append(child)
        self._begun = True
        while self._kept:
            self._send(self._kept.pop(0))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)

    def end(self) -> None:
        """The driver has ended: what comes from now on changes nothing."""
        self._living.clear()

    def put_back(self) -> None:
        """Put back the handlers of before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)

    def raise_kept(self) -> None:
        """Without a driver, what came is for the handlers of before."""
        while self._kept:
            signal.raise_signal(self._kept.pop(0))

    def _forward(self, number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        if self._begun:
            self._send(number)
        else:
            self._kept.append(number)

    def _stop(self, number: int, frame: Any) -> None:
        self._send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)  # until SIGCONT
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        for pid in self._living:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number) if number in (signal.SIGSTOP, signal.SIGCONT) else os.kill(pid, number)


@contextlib.contextmanager
def _passing_signals_on() -> Iterator[_Relay]:
    relay = _Relay()
    try:
        yield relay
    finally:
        relay.put_back()
    relay.raise_kept()


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Make what the driver started and outlives it a child of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _end_what_is_left(before: set[int]) -> None:
    """End the children that were not there before."""
    killing = time.monotonic() + GRACE_S
    while (left := set(children()) - before) and time.monotonic() < killing + KILL_S:
        for pid in left:
            if time.monotonic() > killing:
                os.kill(pid, signal.SIGKILL)  # a child keeps its number until it is waited for
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(LOOK_EVERY_S)


def children() -> list[int]:
    """Return the numbers of this process's children, zombies among them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
            if int((process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(process.name))
    return found


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")
