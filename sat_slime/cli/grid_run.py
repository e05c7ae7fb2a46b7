"""The cells of a grid run one after another or side by side, each as a command in a process of its own, so that none
can take the grid or another cell down."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from sat_slime.cli import engine_packages
from sat_slime.cli.fork_servers import SAT_SLIME, fork_servers
from sat_slime.cli.grid_plan import GridPlan, headline, newest_numbers
from sat_slime.cli.slime_run import saved_iterations
from sat_slime.cli.terminal import BAD_INPUT, INTERRUPTED, Ending, say
from sat_slime.config import ConfigError, LabConfig, SlimeConfig, dump_config
from sat_slime.config.disk import disk_is_full
from sat_slime.config.exits import how_it_ended, signals_handled
from sat_slime.config.jsonl import write_atomically
from sat_slime.grid.state import CellState
from sat_slime.runs.folder import RunFolder, RunFolderError, writable
from sat_slime.runs.health import judge
from sat_slime.runs.live_view import duration
from sat_slime.runs.reading import load_run

POLL_S = 0.5
"""Seconds between looks at the running cells."""
LAST_LINES = 40
"""A cell's error is looked for in so many lines at the end of its output."""
COMMAND = (sys.executable, "-m", "sat_slime.cli.tied")
"""The command that runs a cell where no fork server does, with the grid's process and the arguments of `sat-slime`
behind it."""


def run_grid(plan: GridPlan, retry_failed: bool, options: Sequence[str], console: Console) -> Ending:
    """Run the chosen cells to their end, or until Ctrl-C. Raises ConfigError or RunFolderError when it cannot start.

    options: further options of `sat-slime launch`, for runs of slime.
    """
    _check_options(plan, options)
    if isinstance(plan.run, LabConfig) and (missing := engine_packages.missing_engines()):
        raise ConfigError([f"the lab runtime needs {', '.join(missing)}: {engine_packages.INSTALL_ENGINES}"])
    with _begun(plan) as states:
        queue = _queue(plan, states, retry_failed)
        try:
            with _forking(plan, len(queue)) as environment:
                say(console, f"{plan.title}, in {plan.folder.path}: {headline(plan, states)}")
                GridRun(plan, states, queue, Cells(plan, options, environment), console).run()
        except OSError as error:
            if not disk_is_full(error):
                raise
            remedy = f"free space and go on with: sat-slime grid {plan.folder.path}"
            return Ending("failed", None, f"{error.filename or plan.folder.path}: {error.strerror}; {remedy}")
    return _ending(plan, states)


def commands(plan: GridPlan, retry_failed: bool, options: Sequence[str]) -> list[str]:
    """Return a `sat-slime launch` for each chosen cell that is neither finished nor being run, quoted for a shell, and
    write the files that they name. Raises ConfigError or RunFolderError.

    options: as of `run_grid`.
    """
    _check_options(plan, options)
    cells, lines = Cells(plan, options), []
    with _begun(plan) as states:
        for state in _queue(plan, states, retry_failed):
            run = cells.refreshed(state)
            if run.state().get("status") not in ("finished", "running"):
                lines.append(shlex.join(["sat-slime", *cells.arguments(state)]))
    return lines


def _check_options(plan: GridPlan, options: Sequence[str]) -> None:
    if isinstance(plan.run, LabConfig) and options:
        raise ConfigError([f"{options[0]} is for runs of slime, and these are lab runs: leave it out"])


@contextlib.contextmanager
def _begun(plan: GridPlan) -> Iterator[list[CellState]]:
    """Hold the grid's folder, which says what the grid is made of; yields the states of its cells."""
    folder = plan.folder
    with contextlib.ExitStack() as undo:
        with writable(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.lock()
            undo.callback(folder.unlock)
            states = folder.begin(plan.grid, plan.run)
        yield states


def _queue(plan: GridPlan, states: Sequence[CellState], retry_failed: bool) -> list[CellState]:
    """Return the cells that are still to run, in their order."""
    wanted = set(plan.wanted)
    done = ("finished",) if retry_failed else ("finished", "failed")
    queue = [state for state in states if state.cell in wanted and state.state not in done]
    for state in queue:
        if state.state == "failed":
            state.attempts, state.state = 0, "interrupted"
    return queue


def _forking(plan: GridPlan, cells: int) -> contextlib.AbstractContextManager[Mapping[str, str]]:
    """Return a context in which processes of cells can be forked: it yields what their environment needs for that.
    cells: how many are to run."""
    if not isinstance(plan.run, LabConfig) or cells < 2:  # one cell alone would wait for the imports
        return contextlib.nullcontext({})
    plan.folder.logs.mkdir(parents=True, exist_ok=True)
    return fork_servers(plan.folder.logs / "fork-servers.txt")


def _ending(plan: GridPlan, states: Sequence[CellState]) -> Ending:
    wanted, path = set(plan.wanted), plan.folder.path
    chosen = [state for state in states if state.cell in wanted]
    failed = [state for state in chosen if state.state == "failed"]
    finished = sum(state.state == "finished" for state in chosen)
    unfinished = len(chosen) - len(failed) - finished
    lines = [f"{finished} of {len(chosen)} cells finished, in {path}"]
    lines += [f"failed: {state.cell.name}: {state.error}" for state in failed]
    if failed:
        lines.append(f"when that is fixed, start them again with: sat-slime grid {path} --retry-failed")
    if unfinished:
        lines.append(f"go on with: sat-slime grid {path}")
    lines.append(f"look at it with: sat-slime status {path}; report: sat-slime report {path}")
    return Ending("interrupted" if unfinished else "failed" if failed else "finished", None, "\n".join(lines))


# ------------------------------------------------------------------------------------------------- a cell's process


class Cells:
    """The commands that run the cells: `sat-slime launch`, or `sat-slime logs` where a cell's job goes on already."""

    def __init__(self, plan: GridPlan, options: Sequence[str] = (), environment: Mapping[str, str] | None = None):
        """options: further options of `sat-slime launch`, for runs of slime. environment: what is more in that of a
        cell."""
        self.plan = plan
        self.options = options
        self.environment = {**os.environ, **(environment or {})}

    def arguments(self, state: CellState) -> list[str]:
        """Return the arguments of `sat-slime` that run a cell to its end, from its beginning or from where it
        stands."""
        config, run = self.plan.configs[state.cell], self.plan.folder.run_folder(state.cell)
        of_slime = isinstance(config, SlimeConfig)
        if of_slime and run.state().get("status") == "running":
            return ["logs", str(run.path), "--follow"]
        if run.has_data() or (isinstance(config, SlimeConfig) and saved_iterations(config, run.path)):
            return ["launch", str(run.path), "--resume", *self.options]
        file = self.plan.folder.cells / f"{state.cell.name}.yaml"
        write_atomically(file, dump_config(config))
        return ["launch", str(file), *self.options]

    def start(self, arguments: Sequence[str], output: IO[bytes]) -> Any:
        """Return a process of `sat-slime` that leads a session of its own, reads nothing, and gets SIGTERM when this
        one ends: a Popen, or what is like one where a fork server forked it.

        output: takes what it prints.
        """
        from sat_slime.lab.forking import RUNS, ForkedProcess, NoForkServer, socket_of

        with contextlib.suppress(NoForkServer), open(os.devnull, "rb") as nothing:
            return ForkedProcess(
                socket_of(RUNS, self.environment),
                [SAT_SLIME, *arguments],
                stdin=nothing.fileno(),
                stdout=output.fileno(),
                environment=self.environment,
                ends_with_server=True,
            )
        # A session of its own: Ctrl-C in the terminal is for the grid, which passes it on.
        return subprocess.Popen(
            [*COMMAND, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
        )

    def refreshed(self, state: CellState) -> RunFolder:
        """Return the folder of a cell's run, whose state.json is brought up to date where the run may end without a
        process of ours, as a cluster's job does."""
        run = self.plan.folder.run_folder(state.cell)
        if isinstance(self.plan.run, SlimeConfig):
            from sat_slime.cli.slime_job import job_status
            from sat_slime.launch.ray_jobs import JobError

            # What cannot be asked now is told by the command that runs next.
            with contextlib.suppress(RunFolderError, ConfigError, JobError):
                job_status(run.path)
        return run


# --------------------------------------------------------------------------------------------------- the queue's run


@dataclass
class Active:
    """A cell that is being run."""

    state: CellState
    process: Any
    """None where a process that is not ours works on the cell, such as one that ends after its grid was killed."""
    run: RunFolder

    def has_ended(self) -> bool:
        return not self.run.is_locked() if self.process is None else self.process.poll() is not None


class _EndAsked(Exception):
    """An end was asked for while a cell was being started."""


class GridRun:
    """One call of `sat-slime grid`."""

    def __init__(
        self, plan: GridPlan, states: Sequence[CellState], queue: Sequence[CellState], cells: Cells, console: Console
    ):
        """states: all cells of the grid. queue: those of them to run now, in this order."""
        self.plan, self.folder, self.parallel, self.retries = plan, plan.folder, plan.parallel, plan.grid.retries
        self.states, self.waiting = states, deque(queue)
        self.running: list[Active] = []
        self.cells, self.console = cells, console
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
            finally:
                self._kill()
                self.folder.save(self.states)

    def _start(self, state: CellState) -> None:
        run = self.folder.run_folder(state.cell)
        if run.is_locked():
            self._note(state, "running", "another process works on it: waiting for that")
            self.running.append(Active(state, None, run))
            return
        self.cells.refreshed(state)
        if run.state().get("status") == "finished":
            self._finish(state, run)
            return
        arguments, goes_on = self.cells.arguments(state), run.has_data()
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
        self._note(state, "running", ("goes on from its newest checkpoint" if goes_on else "started") + again)

    def _end(self, active: Active) -> None:
        state, run = active.state, active.run
        if active.process is None:
            self.waiting.appendleft(state)  # to see how that ended
            return
        noted = self.cells.refreshed(state).state()
        status, code = noted.get("status"), active.process.returncode
        state.take_minutes(run)
        if status == "finished" and code == 0:
            state.attempts += 1
            self._finish(state, run)
        elif status == "running" and "job" in noted:
            self._note(state, "running", f"its job {noted['job']} goes on: stop it with sat-slime stop {run.path}")
        elif self.asked or code in (INTERRUPTED, -signal.SIGTERM) or (code == 0 and status == "interrupted"):
            self._note(state, "interrupted", "interrupted; the grid goes on with it when it is run again")
        else:
            state.attempts += 1
            state.error = self._error(state, code, noted)
            if code != BAD_INPUT and state.attempts <= self.retries:
                attempt = f"attempt {state.attempts} of {self.retries + 1}"
                self._note(state, "interrupted", f"failed ({attempt}): {state.error}")
                self.waiting.appendleft(state)
            else:
                self._note(state, "failed", f"failed, and is left (attempt {state.attempts}): {state.error}")

    def _finish(self, state: CellState, run: RunFolder) -> None:
        state.error, state.note = None, collapse_note(run)
        self._note(state, "finished", "finished" + (f"; {state.note}" if state.note else ""))

    def _error(self, state: CellState, code: int, noted: Mapping[str, Any]) -> str:
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
        self.folder.save(self.states)
        parts, ended = [f"{time.strftime('%H:%M:%S')}  {state.cell.name}: {text}"], now in ("finished", "failed")
        if ended:
            parts += [*newest_numbers(self.folder.run_folder(state.cell)), duration(60 * state.minutes)]
        say(self.console, "  ".join(parts))
        if ended:
            say(self.console, f"          {headline(self.plan, self.states)}")

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
                say(self.console, "ending the running cells after their iteration and a checkpoint; once more: at once")
            self.running = [active for active in self.running if active.process is not None]  # the others are not ours
            for active in self.running:
                if active.process.poll() is None:
                    active.process.send_signal(signal.SIGTERM if self._heard <= 2 else signal.SIGKILL)

    def _kill(self) -> None:
        """Kill the cells that still run. There are none unless the grid itself failed."""
        for active in self.running:
            if active.process is not None and active.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(active.process.pid, signal.SIGKILL)
                active.process.wait()
                active.state.state = "interrupted"


def collapse_note(run: RunFolder) -> str | None:
    """Return what the collapse rule says of a finished run."""
    data = load_run(run.path).data
    return judge(data.metrics, data.evals, data.period).sentence() or None
