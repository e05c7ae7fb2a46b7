"""The driver of an embedded run: a process of its own, and the launcher's watch over it.

A driver may end without a word: Ray's library ends it from C++, the kernel kills it for want of memory. The launcher
outlives it, imports no engine, tells how it ended, and leaves no process of the run behind.
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
from typing import Any, NoReturn

from sat_slime.config.exits import how_it_ended

FORWARDED = (signal.SIGINT, signal.SIGTERM)
GRACE_S = 2.0
"""Seconds that what the driver left has to end by itself: servers clean up behind them."""
KILL_S = 30.0
"""Seconds that the kernel has to end what was killed; what hangs in it longer is left."""
LOOK_EVERY_S = 0.05
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class Outcome:
    """How the driver's work ended."""

    status: str
    """finished, interrupted or failed."""
    error: str | None = None
    again: bool = False
    """It failed before it began, for a reason that may pass: start it once more."""
    dead: bool = False
    """It could not end by itself: its log has no word of it."""


Lost = Callable[[Outcome], NoReturn]
"""Ends the driver at once, from any thread, with this outcome."""


def watched(work: Callable[[Lost], Outcome]) -> Outcome:
    """Do the work in a child process and wait for it. SIGINT and SIGTERM go on to it.

    It dies with this process, and stops with it (Ctrl-Z). When it has ended, so has everything that it started.
    """
    before = _children()
    told = os.memfd_create("sat_slime-outcome")
    try:
        with _adopting_orphans():
            signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
            parent = os.getpid()
            try:
                child = os.fork()
            except OSError as error:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
                return Outcome("failed", f"{error.strerror}: no process could be started for the run; end other work")
            if child == 0:
                _be_the_driver(work, told, parent)
            with _forwarding_signals(child) as living:
                ray_death = _ray_death_before(child)
                _, status = os.waitpid(child, 0)
                living.clear()  # a signal from here on comes too late to change how the run ended
                _end_what_is_left(before)
                outcome = _read(told)
        return outcome or _without_a_word(child, os.waitstatus_to_exitcode(status), ray_death)
    finally:
        os.close(told)


def _be_the_driver(work: Callable[[Lost], Outcome], told: int, parent: int) -> NoReturn:
    def lost(outcome: Outcome) -> NoReturn:
        with contextlib.suppress(OSError):
            os.pwrite(told, json.dumps(asdict(outcome)).encode(), 0)
        os._exit(0)

    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it died before it could be heard
        os.setpgid(0, 0)  # Ctrl-C is the launcher's, which passes it on: once, however it came
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a terminal of `stty tostop` would stop it at its first line
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        outcome = work(lost)
        sys.stdout.flush()
        sys.stderr.flush()
        lost(outcome)
    except (KeyboardInterrupt, SystemExit):
        lost(Outcome("interrupted"))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # nothing that this process began before the fork is the driver's to end


def _read(told: int) -> Outcome | None:
    text = os.pread(told, os.fstat(told).st_size, 0)
    return Outcome(**json.loads(text)) if text else None


def _without_a_word(child: int, code: int, ray_death: str | None) -> Outcome:
    driver = f"the run's driver (process {child}) {how_it_ended(code)}"
    if ray_death and code >= 0:  # not of one that was killed, upon which Ray's processes end too
        return Outcome("failed", f"{ray_death}, and {driver} by it", dead=True)
    return Outcome("failed", f"{driver} and could not say why", dead=True)


@contextlib.contextmanager
def _forwarding_signals(child: int) -> Iterator[list[int]]:
    """They are blocked until the handlers are there. Yields whom they go on to."""
    living = [child]

    def send(number: int) -> None:
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number) if number in (signal.SIGSTOP, signal.SIGCONT) else os.kill(pid, number)

    def forward(number: int, frame: Any) -> None:
        send(number)

    def stop(number: int, frame: Any) -> None:
        send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)  # until SIGCONT
        send(signal.SIGCONT)

    handlers = {**dict.fromkeys(FORWARDED, forward), signal.SIGTSTP: stop}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    try:
        yield living
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """What the driver started and outlives it becomes a child of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _end_what_is_left(before: set[int]) -> None:
    """End the children that were not there before."""
    killing = time.monotonic() + GRACE_S
    while (left := _children() - before) and time.monotonic() < killing + KILL_S:
        for pid in left:
            if time.monotonic() > killing:
                os.kill(pid, signal.SIGKILL)  # a child: until it is collected its number is its own
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(LOOK_EVERY_S)


def _ray_death_before(child: int) -> str | None:
    from sat_slime.embedded.deaths import ray_death_before

    return ray_death_before(child)


def _children() -> set[int]:
    from sat_slime.embedded.deaths import children

    return set(children())


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")
