"""The trainer in a process of its own: what the driver calls, and the program that answers.

Both ends of a socket, the program's being its standard input, send what `multiprocessing` pickles. The kernel ends the
program with the thread that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sat_slime.config.exits import how_it_ended
from sat_slime.config.schema import LabConfig
from sat_slime.rollout.sglang_on_cpu.absent import not_compiled

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Of trainer and engine: more threads on busy cores are ten times slower, and a GPU is left alone."""

MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(512 * 2**20)}
"""Of the trainer: glibc keeps the memory of a step's tensors, which the system would clear for the next ones: 4,000
page faults a step of the tiny model. 32 MiB is the most that it takes."""


class PartFailure(RuntimeError):
    """A part of the run died, raised, or answered wrongly; the message says which and why."""


class TrainerProcess:
    """The trainer's process. Its calls are answered one after the other, in their order."""

    def __init__(self, config: LabConfig, log: Path, who: str = "trainer") -> None:
        """log: gets its output. who: its name in errors."""
        self._who = who
        log.parent.mkdir(parents=True, exist_ok=True)
        self._connection, theirs = multiprocessing.Pipe()
        with theirs, log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sat_slime.lab.process"],
                stdin=theirs.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT, **MALLOC},
                start_new_session=True,  # Ctrl-C is the driver's
            )
        with contextlib.suppress(OSError):  # the first call tells of its death
            self._connection.send(sys.path)
            self._connection.send(pickle.dumps(config))  # read with that path: a stabilizer may be the user's
        self._calls = ThreadPoolExecutor(1, who)

    def start(self, method: str, *arguments: Any) -> Future[Any]:
        """Starts a method of Trainer, or `warm_up`; its future fails with PartFailure."""
        return self._calls.submit(self._call, method, arguments)

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the result of a method of Trainer, or of `warm_up`, waited for. Raises PartFailure."""
        return self.start(method, *arguments).result()

    def close(self) -> None:
        """Ends the process at once, with all that it started: what it holds was saved, or is not to be."""
        with self._process, contextlib.suppress(ProcessLookupError):  # which waits for it
            os.killpg(self._process.pid, signal.SIGKILL)
        self._calls.shutdown(cancel_futures=True)
        self._connection.close()

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            self._connection.send((method, arguments))
            failed, value = self._connection.recv()
        except (EOFError, OSError):
            how = how_it_ended(self._process.wait())
            raise PartFailure(f"{self._who} (process {self._process.pid}) {how}") from None
        if failed:
            raise PartFailure(f"{self._who}: {value}")
        return value


def serve() -> None:
    """Be the trainer's process: answer the calls that come through standard input."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the driver, also within a call
    connection = Connection(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the socket is not for what this process starts
    sys.path[:] = connection.recv()
    config = pickle.loads(connection.recv())
    import torch

    # Megatron hands functions to torch.compile as it is imported, which for that imports two seconds of compilers.
    # Of these functions the trainer calls one, TopKRouter._apply_expert_bias, which has nothing to do here.
    torch.compile = not_compiled
    from sat_slime.lab.trainer import Trainer, warm_up

    trainer: Trainer | None = None
    warming: Iterator[int] | None = None
    while True:
        method, arguments = connection.recv()
        answer: tuple[bool, Any]
        try:
            if method == "warm_up":  # the steps made so far, each time that it is called; None at the end
                warming = warming or warm_up(config, *arguments)
                answer = False, next(warming, None)
            else:
                trainer = trainer or Trainer(config)
                answer = False, getattr(trainer, method)(*arguments)
        except Exception as error:
            traceback.print_exc()
            answer = True, f"{type(error).__name__}: {error}"
        connection.send(answer)


if __name__ == "__main__":
    serve()
