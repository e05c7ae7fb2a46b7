"""Runs the cells of a grid, each in a process of its own, so that none can take the grid or another cell down."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from sat_slime.config.exits import how_it_ended, signals_handled
from sat_slime.grid.state import CellState, GridFolder, last_sign
from sat_slime.runs.collapse import judge
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.reading import load_run

POLL_S = 0.5
"""Seconds between looks at the running cells."""
BAD_INPUT, INTERRUPTED = 2, 130
"""Exit codes of `sat-slime launch`: for settings that cannot work, and for a run that was told to end."""
LAST_LINES = 40
"""A cell's error is looked for in so many lines at the end of its output."""


class View(Protocol):
    """Receives what happens while the grid runs."""

    def event(self, state: CellState, text: str) -> None: ...
    def message(self, text: str) -> None: ...
    def refresh(self) -> None: ...


class Cells(Protocol):
    """The way in which a cell is run, which depends on the runtime."""

    def arguments(self, state: CellState) -> list[str]:
        """Return the arguments of `sat-slime` that run a cell to its end, from its beginning or from where it
        stands."""

    def start(self, arguments: Sequence[str], output: IO[bytes]) -> Process:
        """Start `sat-slime` in a process that leads a session of its own, reads nothing, and gets SIGTERM when this one
        ends.

        output: takes what it prints.
        """

    def kill(self, process: Process) -> None:
        """Kill a process and all that it started. Raises ProcessLookupError where it is gone."""

    def settle(self, state: CellState) -> None:
        """Bring the state.json of a cell's run up to date, where the run may end without a process of ours, as a
        cluster's job does."""


class Process(Protocol):
    """A process that runs a cell, with the attributes of `subprocess.Popen` that the grid reads."""

    pid: int
    returncode: int | Any

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


@dataclass
class Active:
    """A cell that is being run."""

    state: CellState
    process: Process | None
    """None where a process that is not ours works on the cell, such as one that ends after its grid was killed."""
    run: RunFolder

    def has_ended(self) -> bool:
        return not self.run.is_locked() if self.process is None else self.process.poll() is not None

    def signal(self, number: int) -> None:
        """Send a signal to the cell's own process, which ends what it started."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


class _EndAsked(Exception):
    """An end was asked for while a cell was being started."""


class GridRun:
    """One call of `sat-slime grid`."""

    def __init__(
        self,
        folder: GridFolder,
        states: Sequence[CellState],
        queue: Sequence[CellState],
        cells: Cells,
        view: View,
        parallel: int = 1,
        retries: int = 0,
    ):
        """states: all cells of the grid. queue: those of them to run now, in this order, `parallel` at once."""
        self.folder = folder
        self.states = states
        self.waiting = deque(queue)
        self.running: list[Active] = []
        self.cells = cells
        self.view = view
        self.parallel = parallel
        self.retries = retries
        self.asked = 0
        """Times that an end was asked for."""
        self._heard = 0
        self._starting = False
        self._wake = threading.Event()

    def run(self) -> None:
        """Run to the end of the queue, or until Ctrl-C or SIGTERM. The first of these ends the running cells cleanly,
        the second at once. Whatever happens, no cell is left running."""
        self.folder.logs.mkdir(parents=True, exist_ok=True)
        with signals_handled(self._ask):
            try:
                while self.running or (self.waiting and not self.asked):
                    while self.waiting and len(self.running) < self.parallel and not self.asked:
                        self._start(self.waiting.popleft())
                    self._wake.wait(POLL_S)
                    self._wake.clear()
                    self._pass_on()
                    for active in [active for active in self.running if active.has_ended()]:
                        self.running.remove(active)
                        self._end(active)
                    self.view.refresh()
            finally:
                self._kill()
                self._save()

    # -------------------------------------------------------------------------------------------------- one cell

    def _start(self, state: CellState) -> None:
        run = self.folder.run_folder(state)
        if run.is_locked():
            self._note(state, "running", "another process works on it: waiting for that")
            self.running.append(Active(state, None, run))
            return
        self.cells.settle(state)
        if run.state().get("status") == "finished":
            self._finish(state, run)
            return
        arguments = self.cells.arguments(state)
        goes_on = run.has_data()
        state.started, state.ended = time.time(), None
        with open(self._output(state), "ab") as output:
            output.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} sat-slime {' '.join(arguments)}\n".encode())
            output.flush()
            self._starting = True
            try:
                process = self.cells.start(arguments, output)
            except _EndAsked:
                self.waiting.appendleft(state)
                return
            finally:
                self._starting = False
        self.running.append(Active(state, process, run))
        again = f", attempt {state.attempts + 1}" if state.attempts else ""
        how = "goes on from its newest checkpoint" if goes_on else "started"
        self._note(state, "running", how + again)

    def _end(self, active: Active) -> None:
        state, run = active.state, active.run
        if active.process is None:
            self.waiting.appendleft(state)  # to see how that ended
            return
        self.cells.settle(state)
        noted = run.state()
        status, code = noted.get("status"), active.process.returncode
        state.ended = time.time()
        state.minutes += (state.ended - (state.started or state.ended)) / 60
        if status == "finished" and code == 0:
            state.attempts += 1
            self._finish(state, run)
        elif status == "running" and "job" in noted:
            self._note(state, "running", f"its job {noted['job']} goes on: stop it with sat-slime stop {run.path}")
        elif self.asked or code in (INTERRUPTED, -signal.SIGTERM) or (code == 0 and status == "interrupted"):
            self._note(state, "interrupted", "interrupted; the grid goes on with it when it is run again")
        else:
            state.attempts += 1
            self._fail(state, self._error(state, code, noted), code)

    def _finish(self, state: CellState, run: RunFolder) -> None:
        state.error, state.note = None, collapse_note(run)
        self._note(state, "finished", "finished" + (f"; {state.note}" if state.note else ""))

    def _fail(self, state: CellState, error: str, code: int) -> None:
        state.error = error
        if code != BAD_INPUT and state.attempts <= self.retries:
            self._note(state, "interrupted", f"failed (attempt {state.attempts} of {self.retries + 1}): {error}")
            self.waiting.appendleft(state)
        else:
            self._note(state, "failed", f"failed, and is left (attempt {state.attempts}): {error}")

    def _error(self, state: CellState, code: int, noted: dict[str, Any]) -> str:
        # A start that was refused wrote no state.json: what stands there is of the start before it.
        if code != BAD_INPUT and noted.get("status") == "failed" and noted.get("error"):
            return str(noted["error"])
        if code < 0:
            return f"its process {how_it_ended(code)}"
        lines = self._output(state).read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return errors[-1] if errors else f"its process {how_it_ended(code)}; more in {self._output(state)}"

    def _output(self, state: CellState) -> Path:
        return self.folder.logs / f"{state.cell.name}.txt"

    def _note(self, state: CellState, now: str, text: str) -> None:
        state.state = now
        self._save()
        self.view.event(state, text)

    def _save(self) -> None:
        self.folder.save(self.states)

    # ---------------------------------------------------------------------------------------------------- the end

    def _ask(self, number: int, frame: Any) -> None:
        self.asked += 1
        self._wake.set()
        if self._starting:  # a start may wait for the imports of a fork server, which ends what nobody holds
            self._starting = False
            raise _EndAsked

    def _pass_on(self) -> None:
        """Pass each demand to end on to the running cells, once."""
        while self._heard < self.asked:
            self._heard += 1
            if self._heard == 1:
                self.view.message("ending the running cells after their iteration and a checkpoint; once more: at once")
            self.running = [active for active in self.running if active.process is not None]  # the others are not ours
            for active in self.running:
                active.signal(signal.SIGTERM if self._heard <= 2 else signal.SIGKILL)

    def _kill(self) -> None:
        """Kill the cells that still run. There are none unless the grid itself failed."""
        for active in self.running:
            if active.process is not None and active.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    self.cells.kill(active.process)
                active.process.wait()
                active.state.state, active.state.ended = "interrupted", last_sign(active.run, active.state.started)


def collapse_note(run: RunFolder) -> str | None:
    """Return what the collapse rule says of a finished run."""
    data = load_run(run.path).data
    return judge(data.metrics, data.evals, data.period).sentence() or None
