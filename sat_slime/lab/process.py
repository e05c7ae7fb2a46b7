"""The trainer in a process of its own: what the driver calls, and the program that answers.

Both ends of a socket, the program's being its standard input, send what `multiprocessing` pickles. The program ends
when the socket closes, which it does however the driver ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from sat_slime.config.exits import how_it_ended
from sat_slime.config.schema import LabConfig
from sat_slime.lab.batch import RolloutBatch, StepResult
from sat_slime.lab.failures import PartFailure

GONE_S = 10.0
"""A process that the trainer started may hold its end of the socket for longer: nobody waits for that."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
"""What the process has in its environment: more threads on busy cores are slower."""


class TrainerProcess:
    """The trainer's process. Its calls are answered one after the other, in their order."""

    def __init__(
        self, config: LabConfig, log: Path, who: str = "trainer", progress: Callable[[int], None] | None = None
    ) -> None:
        """
        Args:
            log: gets its output.
            who: its name in errors.
            progress: is given the steps of `warm_up`, from another thread.
        """
        self._who, self._progress = who, progress
        self._calls: deque[Future[Any]] = deque()
        self._death: PartFailure | None = None
        self._lock = threading.Lock()
        log.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sat_slime.lab.process"],
                stdin=theirs.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,  # Ctrl-C is the driver's
            )
        self._connection = Connection(ours.detach())
        with contextlib.suppress(OSError):  # it has ended, which the reader says
            self._connection.send(sys.path)
            self._connection.send(pickle.dumps(config))  # read after `sys.path`: a task may be of the user's module
        self._reader = threading.Thread(target=self._read, name=who, daemon=True)
        self._reader.start()

    def start(self, method: str, *arguments: Any, **keywords: Any) -> Future[Any]:
        """Starts a method of Trainer; its future fails with PartFailure."""
        future: Future[Any] = Future()
        with self._lock:
            if self._death is not None:
                future.set_exception(self._death)
                return future
            message = ForkingPickler.dumps((method, arguments, keywords))  # what cannot be sent is no call
            self._calls.append(future)
            with contextlib.suppress(OSError):  # it has ended, which the reader says
                self._connection.send_bytes(message)
        return future

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Return the result of a method of Trainer, waited for. Raises PartFailure."""
        return self.start(method, *arguments, **keywords).result()

    def start_train(self, batch: RolloutBatch, dump: bool = False) -> Future[list[StepResult]]:
        """Starts training on a batch. dump: also return the tokens' columns."""
        return self.start("train", batch.graded(), dump)

    def close(self) -> None:
        """Ends the process at once: what it holds was saved, or is not to be."""
        with self._lock:
            self._death = self._death or PartFailure(f"the {self._who} was ended")
        if self._reader.is_alive():  # it waits for the process once the process has ended
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
        self._reader.join(GONE_S)

    def _read(self) -> None:
        """Hands on the answers until the process ends; then every call that waits fails."""
        unread = ""
        try:
            while True:
                kind, value = self._connection.recv()
                if kind == "progress":
                    with contextlib.suppress(Exception):  # a view that cannot be drawn ends no run
                        (self._progress or (lambda _: None))(value)
                elif kind == "result":
                    self._calls.popleft().set_result(value)
                else:
                    self._calls.popleft().set_exception(PartFailure(f"{self._who}: {value}"))
        except (EOFError, OSError):
            pass
        except Exception as error:  # an answer of classes that cannot be read here
            unread = f" answered what cannot be read ({type(error).__name__}: {error})"
            self._process.send_signal(signal.SIGKILL)
        code = self._process.wait()
        with self._lock:
            how = unread or f" {how_it_ended(code)}"
            self._death = self._death or PartFailure(f"{self._who} (process {self._process.pid}){how}")
            self._connection.close()
            for future in self._calls:
                future.set_exception(self._death)
            self._calls.clear()


def warm_up_model(config: LabConfig, folder: Path, log_dir: Path, progress: Callable[[int], None]) -> None:
    """Makes the initial model in a process of its own. progress: is given the number of steps made, now and then."""
    process = TrainerProcess(config, log_dir / "warm-up.log", "warm-up", progress)
    try:
        process.call("warm_up", folder)
    finally:
        process.close()


def _as_it_is(model: Any = None, **_: Any) -> Any:
    """Stands in for torch.compile, as a call and as a decorator with or without arguments: nothing is compiled."""
    return model if model is not None else lambda function: function


def serve() -> None:
    """Be the trainer's process: answer the calls that come through standard input until that closes."""
    connection = Connection(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the socket is not for what this process starts
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        try:
            while True:
                calls.put(connection.recv())
        except (EOFError, OSError):  # the driver has ended, or wants no more
            pass
        except BaseException:
            traceback.print_exc()
        os._exit(1)

    sys.path[:] = connection.recv()
    config = pickle.loads(connection.recv())
    threading.Thread(target=read, daemon=True).start()
    import torch

    if not torch.cuda.is_available():
        # Megatron hands functions to torch.compile as it is imported, which for that imports two seconds of compilers.
        # Of these functions the trainer calls one, TopKRouter._apply_expert_bias, which has nothing to do here.
        torch.compile = _as_it_is
    from sat_slime.lab.trainer import Trainer, warm_up

    trainer: Trainer | None = None
    while True:
        method, arguments, keywords = calls.get()
        result = None
        try:
            if method == "warm_up":
                for steps in warm_up(config, *arguments):
                    connection.send(("progress", steps))
            else:
                trainer = trainer or Trainer(config)
                result = getattr(trainer, method)(*arguments, **keywords)
        except Exception as error:
            traceback.print_exc()
            connection.send(("error", f"{type(error).__name__}: {error}"))
        else:
            connection.send(("result", result))


if __name__ == "__main__":
    serve()
