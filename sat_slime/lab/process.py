"""The trainer in a process of its own: what the driver calls, and the program that answers.

Both ends of a socket, the program's being its standard input, send what `multiprocessing` pickles. The program ends
when the socket closes, which it does however the driver ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sat_slime.config.exits import how_it_ended
from sat_slime.config.schema import LabConfig

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""What the process has in its environment: more threads on busy cores are slower, and a GPU is left alone."""


class PartFailure(RuntimeError):
    """A part of the run died or raised; the message says which and why."""


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
        self._who, self._progress = who, progress or (lambda steps: None)
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
        self._socket, self._connection = ours, Connection(os.dup(ours.fileno()))
        self._calls = ThreadPoolExecutor(1, who)
        # The program reads the second after the first: a stabilizer may be of the user's module.
        self._begun = self._calls.submit(self._send, sys.path, pickle.dumps(config))

    def start(self, method: str, *arguments: Any) -> Future[Any]:
        """Starts a method of Trainer; its future fails with PartFailure."""
        return self._calls.submit(self._call, method, arguments)

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the result of a method of Trainer, waited for. Raises PartFailure."""
        return self.start(method, *arguments).result()

    def close(self) -> None:
        """Ends the process at once: what it holds was saved, or is not to be."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):  # a process that the trainer started may hold its end for longer
            self._socket.shutdown(socket.SHUT_RDWR)
        self._calls.shutdown(cancel_futures=True)
        self._connection.close()
        self._socket.close()

    def _send(self, *messages: Any) -> None:
        for message in messages:
            self._connection.send(message)

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            self._begun.result()
            self._send((method, arguments))
            while True:
                kind, value = self._connection.recv()
                if kind == "result":
                    return value
                if kind == "error":
                    raise PartFailure(f"{self._who}: {value}")
                with contextlib.suppress(Exception):  # a view that cannot be drawn ends no run
                    self._progress(value)
        except (EOFError, OSError):
            how = how_it_ended(self._process.wait())
            raise PartFailure(f"{self._who} (process {self._process.pid}) {how}") from None


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

    # Megatron hands functions to torch.compile as it is imported, which for that imports two seconds of compilers.
    # Of these functions the trainer calls one, TopKRouter._apply_expert_bias, which has nothing to do here.
    torch.compile = _as_it_is
    from sat_slime.lab.trainer import Trainer, warm_up

    trainer: Trainer | None = None
    while True:
        method, arguments = calls.get()
        result = None
        try:
            if method == "warm_up":
                for steps in warm_up(config, *arguments):
                    connection.send(("progress", steps))
            else:
                trainer = trainer or Trainer(config)
                result = getattr(trainer, method)(*arguments)
        except Exception as error:
            traceback.print_exc()
            connection.send(("error", f"{type(error).__name__}: {error}"))
        else:
            connection.send(("result", result))


if __name__ == "__main__":
    serve()
