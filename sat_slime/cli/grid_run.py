"""A grid of runs: planned with each cell checked as the run that it is, shown, and run."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from sat_slime.cli import lab_run
from sat_slime.cli.any_run import how_long, optimizer_steps
from sat_slime.cli.slime_run import end_left_ray, find, newest_state, saved_iterations, still_there
from sat_slime.cli.terminal import BAD_INPUT, INTERRUPTED, Ending, say, short
from sat_slime.config import ConfigError, GridConfig, LabConfig, SlimeConfig, dump_config, load_config, load_grid
from sat_slime.config.exits import how_it_ended, signals_handled
from sat_slime.config.jsonl import number, write_atomically
from sat_slime.config.loader import RunConfig, vary
from sat_slime.config.method_section import BESIDE, SETTINGS, section_name
from sat_slime.config.rules import config_errors, config_warnings, slime_config_warnings
from sat_slime.config.section import changed_since, flat, kept_settings
from sat_slime.config.source import parse_setting
from sat_slime.launch import checks
from sat_slime.launch.job_log import ends_with_this
from sat_slime.launch.memory import machine_sizes
from sat_slime.launch.ray_jobs import JobError
from sat_slime.objective import named_method
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.grid import Cell, GridFolder, cell_config, plan_cells, select_cells
from sat_slime.runs.log import duration
from sat_slime.runs.reading import last_row, newest_numbers

CELL_MEMORY_GIB = 4.0
"""Memory that a cell of a tiny model is given: its server, its trainer and its driver."""
POLL_S = 0.1
"""Seconds between looks at the running cells, and from a Ctrl-C to the cells."""
COMMAND = (sys.executable, "-m", "sat_slime")


@dataclass(frozen=True)
class GridPlan:
    """A grid that can start or go on."""

    grid: GridConfig
    """The grid as its folder keeps it: its run is run.yaml, which has the grid's settings already."""
    folder: GridFolder
    run: RunConfig
    configs: Mapping[Cell, RunConfig]
    """The run of each cell."""
    wanted: Sequence[Cell]
    """Those of these cells that are to be run now."""
    warnings: Sequence[str] = ()
    options: Sequence[str] = ()
    """Further options of `sat-slime launch`, for runs of slime."""

    @property
    def parallel(self) -> int:
        """Cells that run at the same time: what the grid says, else one for each core that has memory for it."""
        if self.grid.parallel is not None:
            return self.grid.parallel
        if isinstance(self.run, SlimeConfig):
            return 1
        return _cells_at_once()


@functools.cache
def _cells_at_once() -> int:
    """Return how many cells this machine, or the container, has cores and memory for."""
    memory = (machine_sizes()["host"] or 0) / 2**30
    return max(1, min(len(os.sched_getaffinity(0)), int(memory / CELL_MEMORY_GIB)))


def plan_grid(
    file: Path,
    name: str | None = None,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    overrides: Sequence[str] = (),
    options: Sequence[str] = (),
) -> GridPlan:
    """Return the grid that the command line asks for, checked cell by cell. Raises ConfigError or RunFolderError.

    Args:
        file: a YAML file; or, to go on with a grid, its folder or the grid.yaml in it.
        name: the folder's, other than the file's.
        only, seeds: as of `select_cells`.
        overrides: settings of all runs, as KEY=VALUE.
        options: of GridPlan.
    """
    folder = GridFolder(file if file.is_dir() else file.parent)
    if file.is_dir() and RunFolder(file).is_run():
        raise RunFolderError(f"{file} is a run, not a grid: sat-slime launch {short(file)} --resume goes on with it")
    if file.is_dir() and not folder.is_grid():
        raise RunFolderError(f"{file} is not a grid folder: it has no grid.yaml")
    begun = folder.has_begun() and (file.is_dir() or file == folder.config)
    file = folder.config if file.is_dir() else file
    grid = load_grid(file, {"name": name} if name else {})
    if name or not begun:
        folder = GridFolder(Path(grid.output_dir).expanduser() / grid.name)
        there = {*folder.path.iterdir()} if folder.path.is_dir() and not folder.is_grid() else set()
        if folder.cells in there:  # of a start that broke off before it wrote grid.yaml
            there -= {folder.cells, folder.logs, folder.run}
        if any(not path.name.startswith(".") for path in there):
            raise RunFolderError(f"{folder.path} exists and is not a grid folder: choose another --name")
    of_file = load_config(file.parent / grid.run)
    run = vary(of_file, [(f"{file}: settings", grid.settings)], overrides)
    is_lab = isinstance(run, LabConfig)
    errors_of: Callable[[Any], list[str]] = config_errors if is_lab else checks.settings_errors
    warnings_of: Callable[[Any], list[str]] = config_warnings if is_lab else slime_config_warnings
    if is_lab and options:
        raise ConfigError(f"{options[0]} is for runs of slime, and these are lab runs: leave it out")
    cells = plan_cells(grid)
    wanted = select_cells(grid, cells, only, seeds)
    configs = {cell: cell_config(grid, file, run, cell, folder.runs) for cell in cells}
    faults = {cell: errors_of(configs[cell]) + _changed(folder, cell, configs[cell]) for cell in cells}
    errors = [*_by_cell(faults), *_read_by_no_cell(of_file, run, cells), *_of_an_axis(grid, overrides)]
    # In one folder they would go on from one another's checkpoints.
    saves = [config.checkpoint for config in configs.values() if isinstance(config, SlimeConfig)]
    folders = Counter(one.folder for one in saves if one.folder and one.every_n_iterations)
    each = "set it to null, which is a folder of each run"
    errors += [f"slime.save is {path} for {count} cells: {each}" for path, count in folders.items() if count > 1]
    if errors:
        raise ConfigError(*(f"{file}: {line}" for line in errors))
    warnings = [*_by_cell({cell: warnings_of(config) for cell, config in configs.items()})]
    kept = grid.model_copy(update={"run": folder.run.name, "settings": {}})
    return GridPlan(kept, folder, run, configs, wanted, warnings, options)


def _by_cell(faults: Mapping[Cell, Sequence[str]]) -> Iterator[str]:
    """Yield each fault once, with the cells that it is of. faults: of each cell."""
    for text in dict.fromkeys(text for texts in faults.values() for text in texts):
        names = [cell.name for cell, texts in faults.items() if text in texts]
        some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield f"{text} ({'all cells' if len(names) == len(faults) else some})"


def _changed(folder: GridFolder, cell: Cell, config: RunConfig) -> list[str]:
    """Return which settings of a cell have changed since it began, in words."""
    run = folder.run_folder(cell)
    if not run.has_data():
        return []
    saved = load_config(run.config)
    if type(saved) is not type(config):
        return [f"it was started as a run of runtime {saved.runtime}, not of {config.runtime}: choose another --name"]
    also_kept = ["pipeline.iterations"]  # cells of a grid are equally long
    if changed := changed_since(kept_settings(saved, also_kept), config, also_kept):
        return [
            f"a grid keeps its settings, but these differ from those of cells that have started: {changed}; leave "
            "them as they were, or start another grid with --name X"
        ]
    return []


def _read_by_no_cell(of_file: RunConfig, run: RunConfig, cells: Iterable[Cell]) -> list[str]:
    """Return a line for every stabilizer that no cell's method has and the grid gives settings."""
    methods = [named_method(name) for name in {cell.method for cell in cells}]
    read = {section_name(method, part) for method in methods for part in method.stabilizers}
    return [
        f"method.{key} has settings, and no method of the grid reads them: leave them out"
        for key in SETTINGS.keys() - read
        if getattr(run.method, key) not in (None, getattr(of_file.method, key))
    ]


def _of_an_axis(grid: GridConfig, overrides: Sequence[str]) -> list[str]:
    """Return a line for every setting that is given to all cells, and that each has from the grid itself."""
    given = [grid.settings, dict(map(parse_setting, overrides))]
    axes = {"pipeline.lag": "lags", "name": "name", "output_dir": "output_dir"}
    axes |= dict.fromkeys(("method", "method.base", *(f"method.{key}" for key in BESIDE)), "methods")
    axes |= dict.fromkeys(grid.seed_keys, "seeds")
    return [
        f"{key} is set for all cells, and each has its own by the grid's {axes[key]}: leave it out, or "
        f"change {axes[key]} in the file of the grid"
        for key in dict.fromkeys(key for settings in given for key in flat(settings))
        if key in axes
    ]


def minutes_left(plan: GridPlan, cells: Iterable[Cell]) -> list[float]:
    """Return the minutes that each of these cells still takes, by the median of finished ones, those that have begun
    first; none before a cell has finished."""
    finished = [cell for cell in plan.configs if plan.folder.state(cell) == "finished"]
    took = [minutes for cell in finished if (minutes := plan.folder.minutes(cell)) > 0]
    made = [number(last_row(plan.folder.run_folder(cell).metrics), "step", 0.0) for cell in cells if took]
    steps = optimizer_steps(plan.run)
    return [statistics.median(took) * max(0.0, 1 - step / steps) for step in sorted(made, reverse=True)]


def by_clock(plan: GridPlan, minutes: Iterable[float]) -> float:
    """Return the minutes until cells that take so many have ended, as many side by side as the grid runs."""
    ends = [0.0] * plan.parallel
    for cell in minutes:
        ends[ends.index(min(ends))] += cell
    return max(ends)


def headline(plan: GridPlan, unless: Iterable[Cell] = ()) -> str:
    """Return `12 of 78 finished, 1 running, 65 planned; 2 h 40 min left`. unless: cells that are left as failed."""
    states = {cell: plan.folder.state(cell) for cell in plan.wanted}
    counts = Counter(states.values())
    parts = [f"{counts['finished']} of {len(plan.wanted)} finished"]
    others = ("running", "failed", "interrupted", "planned")
    parts += [f"{counts[state]} {state}" for state in others if counts[state]]
    wait = (cell for cell, state in states.items() if state != "finished" and cell not in unless)
    left = by_clock(plan, minutes_left(plan, wait))
    return ", ".join(parts) + (f"; {duration(60 * left)} left" if left > 0 else "")


def remark(plan: GridPlan, cell: Cell) -> str:
    """Return why a cell has not finished; empty where it has, or goes on."""
    return "" if plan.folder.state(cell) in ("finished", "running") else plan.folder.error(cell) or ""


def describe(plan: GridPlan) -> str:
    """Return the plan and its cost: what --dry-run prints."""
    grid = plan.grid
    states = {cell: plan.folder.state(cell) for cell in plan.wanted}
    chosen = "" if len(states) == len(plan.configs) else f"; {len(states)} of them chosen"
    axes: dict[str, Sized] = {"method": grid.methods, "lag": grid.lags, "seed": grid.seeds}
    product = " x ".join(f"{len(values)} {name}{'s' * (len(values) != 1)}" for name, values in axes.items())
    left = [cell for cell, state in states.items() if state != "finished"]
    cost = "unknown until a cell has run" if left else "nothing: no cell is left to run"
    if minutes := minutes_left(plan, left):
        gpus = plan.run.gpus if isinstance(plan.run, SlimeConfig) else 0
        hours = f", {sum(minutes) / 60 * gpus:,.0f} GPU-hours on {gpus} GPUs" if gpus else ""
        wait = duration(60 * by_clock(plan, minutes))
        cost = f"{wait} left for {len(left)} cells{hours} (measured: the median of finished cells)"
    counts = ", ".join(f"{count} {state}" for state, count in Counter(states.values()).items())
    lines = [
        f"grid        {plan.folder.path.name}: {product} = {len(plan.configs)} cells{chosen}",
        f"a cell      {plan.run.runtime} runtime, {how_long(plan.run)}",
        f"order       seed by seed ({', '.join(map(str, grid.seeds))}), {plan.parallel} at a time; a failed cell is "
        f"started again, {grid.retries} time(s)",
        f"folder      {plan.folder.path}: {counts}",
        f"cost        {cost}",
    ]
    return "\n".join(lines)


def run_grid(plan: GridPlan, console: Console) -> Ending:
    """Run the chosen cells to their end, or until Ctrl-C. Raises ConfigError or RunFolderError when it cannot start."""
    if isinstance(plan.run, LabConfig):
        lab_run.refuse_without_engines()
    path, shown = plan.folder.path, short(plan.folder.path)
    with plan.folder.held(plan.grid, plan.run):
        failed = GridRun(plan, console).run()
    finished = sum(plan.folder.state(cell) == "finished" for cell in plan.wanted)
    unfinished = len(plan.wanted) - len(failed) - finished
    lines = [f"{finished} of {len(plan.wanted)} cells finished, in {path}"]
    lines += [f"failed: {cell.name}: {error}" for cell, error in failed.items()]
    if failed:
        lines.append(f"when that is fixed, start them again with: sat-slime grid {shown}")
    elif unfinished:
        lines.append(f"go on with: sat-slime grid {shown}")
    lines.append(f"look at it with: sat-slime status {shown}; report: sat-slime report {shown}")
    return Ending("interrupted" if unfinished else "failed" if failed else "finished", None, "\n".join(lines))


def commands(plan: GridPlan) -> list[str]:
    """Return a `sat-slime launch` for each chosen cell that is neither finished nor being run, quoted for a shell, and
    write the files that they name. Raises RunFolderError."""
    with plan.folder.held(plan.grid, plan.run):
        left = [cell for cell in plan.wanted if _state(plan, cell).get("status") not in ("finished", "running")]
        return [shlex.join(["sat-slime", *arguments(plan, cell)]) for cell in left]


def arguments(plan: GridPlan, cell: Cell) -> list[str]:
    """Return the arguments of `sat-slime` that run a cell to its end, from its beginning or from where it stands: of
    `launch`, or of `status` where a cell's job goes on already."""
    config, run = plan.configs[cell], plan.folder.run_folder(cell)
    again = ["--resume"] if run.has_data() else []
    if isinstance(config, SlimeConfig):
        if _state(plan, cell).get("status") == "running":
            return ["status", str(run.path), "--follow"]
        if saved_iterations(config, run.path):
            again = ["--resume"]
        elif again and not config.checkpoint.every_n_iterations:
            again = ["--resume-from", "0"]  # it has nothing to go on from
    if again:
        return ["launch", str(run.path), *again, *plan.options]
    file = plan.folder.cells / f"{cell.name}.yaml"
    write_atomically(file, dump_config(config))
    return ["launch", str(file), *plan.options]


def _state(plan: GridPlan, cell: Cell) -> dict[str, Any]:
    """Return the state of a cell's run, brought up to date where it is a cluster's job, which ends without us."""
    run = plan.folder.run_folder(cell)
    # What cannot be asked now is told by the command that runs next.
    return newest_state(run) if isinstance(plan.run, SlimeConfig) else run.state()


class GridRun:
    """One call of `sat-slime grid`. Each cell is a process of its own, so that none can take another down."""

    def __init__(self, plan: GridPlan, console: Console):
        self.plan, self.folder, self.console = plan, plan.folder, console
        self.waiting = [cell for cell in plan.wanted if plan.folder.state(cell) != "finished"]
        self.running: dict[Cell, subprocess.Popen[bytes]] = {}
        self.starts: Counter[Cell] = Counter()
        """Starts that failed, in this call."""
        self.failed: dict[Cell, str] = {}
        """The error of each cell that is left."""
        self.elsewhere: set[Cell] = set()
        """Cells that were said to be worked on by another process."""
        self.asked = 0
        """Times that an end was asked for."""

    def run(self) -> dict[Cell, str]:
        """Run to the end of the queue, or until Ctrl-C or SIGTERM. The first of these ends the running cells cleanly,
        the second at once. Whatever happens, no cell is left running. Returns the errors of the cells that failed."""
        say(self.console, f"grid {self.folder.path.name}, in {self.folder.path}: {headline(self.plan)}")
        passed_on = 0
        try:
            with signals_handled(self._ask):
                while self.running or (self.waiting and not self.asked):
                    for cell in self._ready():
                        self.waiting.remove(cell)
                        self._start(cell)
                    time.sleep(POLL_S)
                    while passed_on < self.asked:
                        passed_on += 1
                        self._pass_on(passed_on)
                    for cell in [cell for cell, process in self.running.items() if process.poll() is not None]:
                        self._end(cell, self.running.pop(cell).returncode)
        finally:
            for process in self.running.values():  # none, unless the grid itself failed, as on a full disk
                process.terminate()
            for process in self.running.values():  # Ctrl-C meanwhile ends the grid, and that is their second signal
                process.wait()
        return self.failed

    def _ask(self, number: int, frame: Any) -> None:
        self.asked += 1

    def _pass_on(self, demand: int) -> None:
        """Pass the so many-th demand to end on to the running cells."""
        if demand == 1:
            say(self.console, "ending the running cells after their iteration and a checkpoint; once more: at once")
        for process in self.running.values():
            process.send_signal(signal.SIGTERM if demand <= 2 else signal.SIGKILL)

    def _ready(self) -> Iterator[Cell]:
        """Yield cells to start while there is room for one more. One whose run another process works on, such as a
        cell that still ends after its grid was killed, waits for that, and takes room if that is on this machine."""
        held = {cell: holder for cell in self.waiting if (holder := self.folder.run_folder(cell).lock.holder())}
        for cell in held.keys() - self.elsewhere:
            self.elsewhere.add(cell)
            self._tell(cell, "another process works on it: waiting for that")
        room = self.plan.parallel - sum(holder.is_here for holder in held.values())
        for cell in [cell for cell in self.waiting if cell not in held]:
            if len(self.running) >= room or self.asked:
                return
            yield cell

    def _start(self, cell: Cell) -> None:
        if _state(self.plan, cell).get("status") == "finished":
            with contextlib.suppress(RunFolderError, ConfigError, JobError):  # of a lab run, or a cluster that is gone
                end_left_ray(find(self.folder.run_folder(cell).path), self.console)
            self._tell(cell, "finished", has_ended=True)
            return
        words = arguments(self.plan, cell)
        with open(self.folder.output(cell), "ab") as output:
            start_line = f"{self.folder.START}{time.strftime('%Y-%m-%d %H:%M:%S')} sat-slime {shlex.join(words)}\n"
            output.write((b"\n" if output.tell() else b"") + start_line.encode())  # a killed one's line has no end
            output.flush()
            self.running[cell] = subprocess.Popen(
                [*COMMAND, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=ends_with_this(),  # a grid that is killed leaves none running; each has saved what it did
                start_new_session=True,  # Ctrl-C in the terminal is for the grid, which passes it on
            )
        again = f", attempt {self.starts[cell] + 1}" if self.starts[cell] else ""
        how = "goes on from its newest checkpoint" if "--resume" in words else "started"
        self._tell(cell, ("its job goes on" if words[0] == "status" else how) + again)

    def _end(self, cell: Cell, code: int) -> None:
        state = _state(self.plan, cell)
        status = state.get("status")
        if status == "finished":
            self._tell(cell, "finished", has_ended=True)
        elif (told := still_there(state, self.folder.run_folder(cell).path)) and (status, code) != ("lost", BAD_INPUT):
            self._tell(cell, told)
        elif self.asked or code in (INTERRUPTED, -signal.SIGTERM) or (code == 0 and status == "interrupted"):
            self._tell(cell, "interrupted; the grid goes on with it when it is run again")
        elif code == BAD_INPUT and self.folder.run_folder(cell).lock.is_held():
            self.waiting.insert(0, cell)  # another process took it just before
        else:
            self.starts[cell] += 1
            how = f"its process {how_it_ended(code)}"
            error = how if code < 0 else self.folder.error(cell) or f"{how}; more in {self.folder.output(cell)}"
            if code != BAD_INPUT and self.starts[cell] <= self.plan.grid.retries:
                attempt = f"attempt {self.starts[cell]} of {self.plan.grid.retries + 1}"
                self._tell(cell, f"failed ({attempt}): {error}")
                self.waiting.insert(0, cell)
            else:
                self.failed[cell] = error
                self._tell(cell, f"failed, and is left (attempt {self.starts[cell]}): {error}", has_ended=True)

    def _tell(self, cell: Cell, text: str, has_ended: bool = False) -> None:
        """Tell what has become of a cell; of one that has ended also its numbers, and how far the grid is."""
        told = f"{time.strftime('%H:%M:%S')}  {cell.name}: {text}"
        if not has_ended:
            say(self.console, told)
            return
        if cell not in self.failed and (said := remark(self.plan, cell)):
            told = f"{told}; {said}"
        numbers = [f"{name} {text}" for name, text in newest_numbers(self.folder.run_folder(cell)).items() if text]
        say(self.console, "  ".join([told, *numbers, duration(60 * self.folder.minutes(cell))]))
        say(self.console, f"          {headline(self.plan, self.failed)}")
