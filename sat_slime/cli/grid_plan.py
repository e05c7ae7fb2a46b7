"""The plan of a grid: its cells, each checked as a run of its own, how far they are, what is left of them, and what a
terminal shows of that."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sat_slime.cli.any_run import optimizer_steps, settings_errors
from sat_slime.cli.lab_run import ENGINE_MEMORY_GIB
from sat_slime.cli.terminal import say
from sat_slime.config import (
    ConfigError,
    GridConfig,
    LabConfig,
    SlimeConfig,
    config_warnings,
    load_config,
    load_grid,
    slime_config_warnings,
)
from sat_slime.config.jsonl import number, parse_object, read_rows
from sat_slime.config.loader import RunConfig, vary
from sat_slime.config.method_section import SETTINGS, section_name
from sat_slime.config.section import kept_changes
from sat_slime.grid.plan import Cell, cell_config, plan_cells, select_cells
from sat_slime.grid.state import CellState, GridFolder
from sat_slime.objective import named_method
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.live_view import duration

CELL_MEMORY_GIB = 4.0
"""Memory that a cell of a tiny model is given: its first server, its trainer and its driver."""


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
    """Cells that are to be run now."""
    warnings: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"grid {self.folder.path.name}"

    def steps(self, cell: Cell) -> int:
        """Return the optimizer steps of a cell."""
        return optimizer_steps(self.configs[cell])

    @property
    def parallel(self) -> int:
        """Cells that run at the same time: what the grid says, else one for each core that has memory for it."""
        if self.grid.parallel is not None:
            return self.grid.parallel
        if isinstance(self.run, SlimeConfig):
            return 1
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        cell_memory = CELL_MEMORY_GIB + (self.run.rollout.engines - 1) * ENGINE_MEMORY_GIB
        return max(1, min(len(os.sched_getaffinity(0)), int(memory / cell_memory)))

    @property
    def gpus(self) -> int:
        """GPUs of one cell; 0 for the lab runtime."""
        return self.run.train.world_size + self.run.rollout.gpus if isinstance(self.run, SlimeConfig) else 0


def plan_grid(
    file: Path, name: str | None, only: Sequence[str], seeds: Sequence[int], overrides: Sequence[str]
) -> GridPlan:
    """Return the grid that the command line asks for, checked cell by cell. Raises ConfigError or RunFolderError."""
    folder = grid_at(file)
    if folder is not None and name is None:
        file = folder.config
    elif folder is not None:
        file, folder = folder.config, None
    grid = load_grid(file, {"name": name} if name else {})
    if folder is None:
        folder = GridFolder(Path(grid.output_dir).expanduser() / grid.name)
    folder.check_usable()
    of_file = load_config(file.parent / grid.run)
    run = vary(of_file, [(f"{file}: settings", grid.settings)], overrides)
    wanted = select_cells(grid, only, seeds)
    configs = {cell: cell_config(grid, file, run, cell, folder.runs) for cell in plan_cells(grid)}
    errors, warnings = _faults(file, configs, folder)
    errors += [f"{file}: {line}" for line in _read_by_no_cell(of_file, run, configs)]
    if errors:
        raise ConfigError(errors)
    kept = grid.model_copy(update={"run": folder.run.name, "settings": {}})
    return GridPlan(kept, folder, run, configs, wanted, tuple(warnings))


def grid_at(path: Path) -> GridFolder | None:
    """Return the grid folder that `path`, or the grid.yaml in it, means; None where it is another file.

    Raises RunFolderError for a folder that is no grid's.
    """
    if path.is_dir():
        folder = GridFolder(path)
        if RunFolder(path).is_run():
            raise RunFolderError(f"{path} is a run, not a grid: sat-slime launch {path} --resume goes on with it")
        if not folder.is_grid():
            raise RunFolderError(f"{path} is not a grid folder: it has no grid.yaml")
        return folder
    folder = GridFolder(path.parent)
    return folder if path == folder.config and folder.state_file.exists() else None


def _faults(file: Path, configs: Mapping[Cell, RunConfig], folder: GridFolder) -> tuple[list[str], list[str]]:
    """Return (errors, warnings) of all cells, each once, with the cells that it is of."""
    errors: dict[str, list[str]] = {}
    warnings: dict[str, list[str]] = {}
    for cell, config in configs.items():
        for error in settings_errors(config):
            errors.setdefault(error, []).append(cell.name)
        doubts = config_warnings(config) if isinstance(config, LabConfig) else slime_config_warnings(config)
        for doubt in doubts:
            warnings.setdefault(doubt, []).append(cell.name)
        run = RunFolder(folder.runs / cell.name)
        if not run.has_data():
            continue
        if changed := _changed(load_config(run.config), config):
            errors.setdefault(changed, []).append(cell.name)
    lines = [f"{file}: {error} ({_of(cells, len(configs))})" for error, cells in errors.items()]
    return lines, [f"{text} ({_of(cells, len(configs))})" for text, cells in warnings.items()]


def _read_by_no_cell(of_file: RunConfig, run: RunConfig, cells: Iterable[Cell]) -> list[str]:
    """Return a line for every stabilizer that no cell's method has and the grid gives settings."""
    methods = [named_method(name) for name in {cell.method for cell in cells}]
    read = {section_name(method, part) for method in methods for part in method.stabilizers}
    return [
        f"method.{key} has settings, and no method of the grid reads them: leave them out"
        for key in SETTINGS.keys() - read
        if getattr(run.method, key) not in (None, getattr(of_file.method, key))
    ]


def _of(cells: Sequence[str], total: int) -> str:
    if len(cells) == total:
        return "all cells"
    return ", ".join(cells[:3]) + (f" and {len(cells) - 3} more" if len(cells) > 3 else "")


def _changed(saved: RunConfig, config: RunConfig) -> str | None:
    """Return which settings of a cell have changed since it began, in words, or None."""
    if type(saved) is not type(config):
        return f"it was started as a run of runtime {saved.runtime}, not of {config.runtime}: choose another --name"
    changed = kept_changes(saved, config, also_kept=["pipeline.iterations"])  # cells of a grid are equally long
    if not changed:
        return None
    return (
        f"a grid keeps its settings, but these differ from those of cells that have started: {changed}; leave "
        "them as they were, or start another grid with --name X"
    )


# -------------------------------------------------------------------------------------------------------- how far it is

TAIL_BYTES = 32 * 2**10
"""No line of metrics.jsonl is longer."""
STYLES = {"running": "bold cyan", "failed": "bold red", "interrupted": "yellow", "finished": "green", "planned": "dim"}
"""The states, those first whose rows are kept where there is no room for all."""
PLAIN_WIDTH = 120
"""Columns of the table where there is no terminal."""
FOLLOW_S = 2.0
"""Seconds between looks at a grid that another process runs."""


def last_row(path: Path) -> dict[str, Any]:
    """Return the last whole line of a JSON-lines file; empty where there is none."""
    if not path.exists():
        return {}
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().splitlines()
    rows = (row for line in reversed(lines) if (row := parse_object(line)))
    return next(rows, None) or next(reversed(read_rows(path)), {})


def step_of(run: RunFolder) -> int:
    """Return the optimizer steps that a run has made."""
    return int(number(last_row(run.metrics), "step", 0))


@dataclass(frozen=True)
class Outlook:
    """The work that is left of a grid. Minutes are NaN where nothing is known."""

    left: Mapping[Cell, float]
    """Minutes left of each cell that is neither finished nor failed."""
    cell_minutes: float
    """Mean of such a cell, from its beginning."""
    minutes_left: float
    """Minutes by the clock, with as many cells side by side as the grid runs."""
    source: str
    """Where the estimate is from, in words."""


def outlook(plan: GridPlan, states: Sequence[CellState]) -> Outlook:
    """Return the time left for the wanted cells that are neither finished nor failed."""
    wanted = set(plan.wanted)
    open_states = [s for s in states if s.cell in wanted and s.state not in ("finished", "failed")]
    left: dict[Cell, float] = {}
    expected: list[float] = []
    sources: dict[str, None] = {}
    for cell in (state.cell for state in open_states):
        minutes, source = _expected(plan, cell, states)
        done = step_of(plan.folder.run_folder(cell)) / plan.steps(cell)
        left[cell] = minutes * (1 - min(1.0, done))
        expected.append(minutes)
        sources[source] = None
    total = sum(left.values())
    by_clock = max(total / max(1, min(plan.parallel, len(left))), max(left.values(), default=0.0))
    mean = statistics.fmean(expected) if expected else math.nan
    return Outlook(left, mean, total if total != total else by_clock, "; ".join(sources))


def _expected(plan: GridPlan, cell: Cell, states: Sequence[CellState]) -> tuple[float, str]:
    """Return the minutes that a cell takes, and their source: finished cells of its task, those of the same lag where
    there are any; else the grid's own `cost`."""
    finished = [s for s in states if s.cell.task == cell.task and s.state == "finished" and s.minutes > 0]
    same_lag = [state for state in finished if state.cell.lag == cell.lag]
    if finished:
        of = " of the same lag" if same_lag else ""
        return statistics.median(s.minutes for s in same_lag or finished), f"measured: finished cells{of}, median"
    cost, seconds = plan.grid.cost, plan.grid.cost.seconds_per_iteration
    if seconds is None:
        return math.nan, "unknown until a cell has run: cost.seconds_per_iteration is not set"
    minutes = (cost.start_s + plan.configs[cell].pipeline.iterations * seconds) / 60
    return minutes, f"not measured: the grid file's {seconds:g} s an iteration"


# ----------------------------------------------------------------------------------------------------------- tables


def headline(plan: GridPlan, states: Sequence[CellState]) -> str:
    """Return `12 of 78 finished, 1 running, 65 planned; 2 h 40 min left`."""
    wanted = set(plan.wanted)
    counts = Counter(state.state for state in states if state.cell in wanted)
    parts = [f"{counts['finished']} of {len(plan.wanted)} finished"]
    parts += [f"{counts[state]} {state}" for state in STYLES if state != "finished" and counts[state]]
    left = outlook(plan, states).minutes_left
    return ", ".join(parts) + (f"; {duration(60 * left)} left" if left > 0 else "")


def cells_table(plan: GridPlan, states: Sequence[CellState], rows: int | None = None) -> RenderableType:
    """Return a table of the cells in the grid's order. rows: how many fit, the most urgent ones; default: all."""
    left = outlook(plan, states).left
    urgent = sorted(states, key=lambda state: [*STYLES].index(state.state))[: rows and max(1, rows)]
    shown = [state for state in states if any(state is one for one in urgent)]
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for heading in ("cell", "state", "step", "reward", "d_pi", "eval", "time"):
        table.add_column(heading, justify="left" if heading in ("cell", "state") else "right", no_wrap=True)
    remarks = []
    for state in shown:
        run = plan.folder.run_folder(state.cell)
        newest = last_row(run.metrics)
        rest = left.get(state.cell, math.nan) if state.state == "running" else math.nan
        table.add_row(
            state.cell.name,
            Text(state.state, style=STYLES[state.state]),
            f"{step_of(run)}/{plan.steps(state.cell)}" if state.state != "planned" else "",
            *(_text(newest, key, form) for key, form in (("reward/mean", ".3f"), ("mismatch/d_pi", ".4f"))),
            _text(last_row(run.eval), "accuracy", ".3f"),
            f"{duration(60 * rest)} left" if rest == rest else duration(60 * state.minutes) if state.minutes else "",
        )
        if text := remark(state, newest):
            remarks.append(Text(f"{state.cell.name}: {text}"))
    if len(shown) < len(states):
        remarks.insert(0, Text(f"and {len(states) - len(shown)} more", style="dim"))
    return Group(table, *([Text(""), *remarks] if remarks else []))


def remark(state: CellState, newest: Mapping[str, Any]) -> str:
    """Return what a row cannot hold: the cell's error, its collapse, its attempts."""
    collapsed = "meets the collapse rule" if number(newest, "collapse/met", 0.0) > 0 else None
    attempts = f"{state.attempts} attempts" if state.attempts > 1 else None
    return "; ".join(part for part in (state.error, state.note or collapsed, attempts) if part)


def newest_numbers(run: RunFolder) -> list[str]:
    """Return the newest numbers of a cell, a name and a value each."""
    newest, evaluation = last_row(run.metrics), last_row(run.eval)
    numbers = {
        "reward": (newest, "reward/mean"),
        "accuracy": (evaluation, "accuracy"),
        "d_pi": (newest, "mismatch/d_pi"),
    }
    return [f"{name} {text}" for name, (row, key) in numbers.items() if (text := _text(row, key, ".4g"))]


def _text(row: Mapping[str, Any], key: str, form: str) -> str:
    value = number(row, key)
    return format(value, form) if value == value else ""


def describe(plan: GridPlan, retry_failed: bool) -> RenderableType:
    """Return the plan and its cost: what --dry-run prints."""
    grid, pipeline = plan.grid, plan.run.pipeline
    states = plan.folder.observed([*plan.configs])
    wanted = set(plan.wanted)
    counts = Counter(state.state for state in states if state.cell in wanted)
    chosen = "" if len(plan.wanted) == len(states) else f"; {len(plan.wanted)} of them chosen"
    axes: dict[str, Sized] = {"method": grid.methods, "lag": grid.lags, "seed": grid.seeds, "task": grid.tasks}
    product = " x ".join(f"{len(values)} {name}{'s' * (len(values) != 1)}" for name, values in axes.items() if values)
    lines = [
        f"grid        {plan.folder.path.name}: {product} = {len(states)} cells{chosen}",
        f"a cell      {plan.run.runtime} runtime, {pipeline.iterations} iterations, "
        f"{pipeline.iterations * pipeline.optimizer_steps_per_rollout} optimizer steps",
        f"order       seed by seed ({', '.join(map(str, grid.seeds))}), {plan.parallel} at a time; a failed cell is "
        f"started again, {grid.retries} time(s)",
        f"folder      {plan.folder.path}: " + ", ".join(f"{count} {state}" for state, count in counts.items()),
        *_cost_lines(plan, outlook(plan, states)),
    ]
    if counts["failed"] and not retry_failed:
        lines.append(f"failed      {counts['failed']} cell(s) are left as they are; --retry-failed starts them again")
    return Group(*(Text(line) for line in lines))


def _cost_lines(plan: GridPlan, ahead: Outlook) -> list[str]:
    if not ahead.left:
        return ["cost        nothing: no cell is left to run"]
    if ahead.cell_minutes != ahead.cell_minutes:
        return [f"cost        {ahead.source}"]
    time_each, time_left = duration(60 * ahead.cell_minutes), duration(60 * ahead.minutes_left)
    lines = [f"cost        {time_left} left: {len(ahead.left)} cells of {time_each}"]
    if plan.gpus:
        hours, each = sum(ahead.left.values()) / 60 * plan.gpus, ahead.cell_minutes / 60 * plan.gpus
        lines.append(f"            {hours:,.0f} GPU-hours, {each:,.1f} a cell on {plan.gpus} GPUs")
    return [*lines, f"            ({ahead.source})"]


def show_grid(folder: GridFolder, follow: bool, console: Console) -> None:
    """Print the table of a grid, whoever runs it; with `follow` until nobody does, or Ctrl-C."""
    try:
        plan = plan_grid(folder.config, None, (), (), ())
    except ConfigError:  # its base has changed, or is one that a command which reads does not import
        for state in folder.observed():
            say(console, f"{state.cell.name}  {state.state}{f': {state.error}' if state.error else ''}")
        return

    def shown() -> RenderableType:
        states = folder.observed([*plan.configs])
        running = "running" if folder.is_running() else f"not running: sat-slime grid {folder.path} goes on with it"
        if all(state.state == "finished" for state in states):
            running = "done"
        table = cells_table(plan, states, max(3, console.height - 5) if follow else None)
        return Group(Text(f"{plan.title}, {running}"), Text(headline(plan, states)), Text(""), table)

    if not follow:
        (console if console.is_terminal else Console(width=PLAIN_WIDTH)).print(shown())
        return
    with Live(shown(), console=console, auto_refresh=False) as live:
        while folder.is_running():
            time.sleep(FOLLOW_S)
            live.update(shown(), refresh=True)
