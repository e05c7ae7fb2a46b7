"""The pool of worker processes: a response goes in, its verdict comes out, whatever the response is.

A thread sends a response to an idle worker and waits for it. A job whose worker dies over a limit ends with reward 0,
and no other job notices: see worker.py.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import importlib.util
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection

from sat_slime.reward.verdict import KILLED, MODES, Mode, Verdict, verdict
from sat_slime.reward.worker import FORBIDDEN, MEMORY

logger = logging.getLogger(__name__)

_UNREAD = ("unparsed", "undefined", "unevaluated", "too_large", "too_long")
_START_LIMIT_S = 120.0
_BLOCKED_S = 300.0
"""Seconds after which a worker is ended that is stopped or blocked. One that works is ended by its CPU time long
before, unless a hundred wait for each processor."""
_LOGGED_KILLS = 20
"""Kills that are logged one by one; the metrics count all."""
RESPONSE_CHARS = 400_000
"""Characters that are read, from the end of a response."""
LABEL_CHARS = 20_000
"""The most characters of a label; more is an error."""
_MAX_WORKERS = 8


class VerifierPool:
    """Processes that verify. Thread-safe; usable from any event loop. Close it, or use it as a context."""

    def __init__(self, workers: int | None = None, cpu_s: float = 3.0, memory_mb: int = 1024) -> None:
        """Returns at once; a process starts with its first job, in about two seconds.

        Args:
            workers: processes; unset: half as many as cores, at most 8.
            cpu_s: CPU seconds of a verdict; more is reward 0, on a loaded machine as on an idle one.
            memory_mb: address space of a worker. One that holds half of it after a verdict is replaced.

        Raises:
            ModuleNotFoundError: math-verify is not installed.
        """
        workers = max(1, min(_MAX_WORKERS, (os.cpu_count() or 2) // 2)) if workers is None else workers
        for name, value, low in (("workers", workers, 0), ("cpu_s", cpu_s, 0), ("memory_mb", memory_mb, 255)):
            if not value > low:
                raise ValueError(f"{name} is {value!r}: it has to be above {low}")
        if importlib.util.find_spec("math_verify") is None:
            raise ModuleNotFoundError("math-verify is not installed: pip install '.[reward]' in a checkout")
        self._workers = [_Worker(cpu_s, memory_mb) for _ in range(workers)]
        self._idle = list(self._workers)  # as many as threads; the one that has started is taken first
        self._threads = ThreadPoolExecutor(workers, "verifier")
        self._closed = False
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._logged = 0

    def verify(self, response: str, label: str, mode: Mode = "default") -> Verdict:
        """Waits for the verdict on one response."""
        return self.submit(response, label, mode).result()

    def verify_batch(self, pairs: Iterable[tuple[str, str]], mode: Mode = "default") -> list[Verdict]:
        """Waits for the verdicts on (response, label) pairs, and returns them in the order of the pairs."""
        futures = [self.submit(response, label, mode) for response, label in pairs]
        return [future.result() for future in futures]

    async def verify_async(self, response: str, label: str, mode: Mode = "default") -> Verdict:
        """Return the verdict on one response; the event loop goes on meanwhile."""
        return await asyncio.wrap_future(self.submit(response, label, mode))

    def submit(self, response: str, label: str, mode: Mode = "default") -> Future[Verdict]:
        """Submits a response; the result is its verdict."""
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}: it has to be one of {', '.join(MODES)}")
        if len(label) > LABEL_CHARS:
            raise ValueError(f"a label of {len(label)} characters; at most {LABEL_CHARS} are one")
        if self._closed:
            raise RuntimeError("the verifier pool is closed")
        return self._threads.submit(self._verify, response[-RESPONSE_CHARS:], label, mode)

    def drain_metrics(self) -> dict[str, float]:
        """Return the counts since the last call: verdicts, correct, timeouts, kills (timeouts included),
        parse_failures, label_failures, no_answer; and seconds_mean, the time of a verdict in its worker, without the
        wait for one."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        verdicts = counts["verdicts"]
        return {
            "verdicts": float(verdicts),
            "correct": float(counts["correct"]),
            "timeouts": float(counts["timeout"]),
            "kills": float(sum(counts[reason] for reason in KILLED)),
            "parse_failures": float(sum(counts[reason] for reason in _UNREAD)),
            "label_failures": float(counts["unparsed_label"] + counts["undefined_label"]),
            "no_answer": float(counts["no_answer"]),
            "seconds_mean": counts["nanoseconds"] / 1e9 / verdicts if verdicts else 0.0,
        }

    def close(self) -> None:
        """Ends the processes, once the submitted jobs are done."""
        self._closed = True
        self._threads.shutdown()
        for worker in self._workers:
            worker.end()

    def __enter__(self) -> VerifierPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _verify(self, response: str, label: str, mode: Mode) -> Verdict:
        started, worker = time.perf_counter_ns(), self._idle.pop()
        try:
            judged = worker.ask(response, label, mode)
        finally:
            self._idle.append(worker)
        with self._lock:
            self._counts.update(verdicts=1, correct=int(judged.reward), nanoseconds=time.perf_counter_ns() - started)
            self._counts[judged.reason] += 1
            if judged.reason not in KILLED or self._logged == _LOGGED_KILLS:
                return judged
            self._logged += 1
        logger.warning("verifier: %s: label %.80r, response ends in %r", judged.reason, label, response[-200:])
        return judged


class _Worker:
    """The pool's end of a process that verifies. It starts with its first job, and again when it has died."""

    def __init__(self, cpu_s: float, memory_mb: int) -> None:
        self._cpu_s, self._memory_mb = cpu_s, memory_mb
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, response: str, label: str, mode: Mode) -> Verdict:
        """Return the verdict. Raises RuntimeError or OSError where the process does not start."""
        reason = "crash"
        for _ in range(2):  # a process that was full, or that somebody else killed, costs no reward
            if self._process is None:
                self._start()
            try:
                self._connection.send_bytes(json.dumps([response, label, mode]).encode())
                if self._connection.poll(_BLOCKED_S):
                    return Verdict(*json.loads(self._connection.recv_bytes()))
                self.end()
                return verdict(None, "timeout")
            except (OSError, EOFError):
                if (reason := reason_of(self.end())) != "crash":
                    break
        return verdict(None, reason)

    def _start(self) -> None:
        mine, theirs = socket.socketpair()
        limit = struct.pack("ll", int(_BLOCKED_S), int(_BLOCKED_S % 1 * 1e6))  # a process may be stopped
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        program = (
            "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
            "from sat_slime.reward.worker import main; main(*json.loads(sys.argv[2]))"
        )
        paths = [os.path.abspath(path) for path in sys.path]
        arguments = [theirs.fileno(), self._cpu_s, self._memory_mb]
        libraries = os.environ.get("LD_LIBRARY_PATH", "")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, json.dumps(paths), json.dumps(arguments)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                # No more of the environment is passed on than finds libpython, so no secrets; sets have one order.
                env={"PATH": os.defpath, "PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "LD_LIBRARY_PATH": libraries},
                start_new_session=True,  # Ctrl-C ends the pool, and that ends this
            )
        self._connection = Connection(mine.detach())
        try:
            ready = self._connection.poll(_START_LIMIT_S) and self._connection.recv_bytes()
        except (EOFError, OSError):
            ready = False
        if not ready:
            self.end()
            raise RuntimeError("the verifier's process did not start: see its message above")

    def end(self) -> int:
        """Kill the process, where there is one, and return its exit code."""
        if self._process is None:
            return 0
        self._connection.close()
        self._process.kill()
        code = self._process.wait()
        self._process = None
        return code


def reason_of(exit_code: int) -> str:
    """Return why a process died: one of KILLED."""
    return {-signal.SIGPROF: "timeout", MEMORY: "memory", FORBIDDEN: "forbidden"}.get(exit_code, "crash")


@functools.cache
def shared_pool() -> VerifierPool:
    """Return this process's pool, which ends with it."""
    pool = VerifierPool()
    atexit.register(pool.close)
    return pool


def verify(response: str, label: str, mode: Mode = "default") -> Verdict:
    """Return the verdict on one response, from the pool that all callers of this function share."""
    return shared_pool().verify(response, label, mode)
