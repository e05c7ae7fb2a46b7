"""How far the cells of a grid are, what is left of it, and the tables that a terminal shows of that."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sat_slime.cli.grid_run.grid_plan import GridPlan, plan_grid
from sat_slime.cli.terminal import say
from sat_slime.config import ConfigError
from sat_slime.config.jsonl import number, parse_object, read_rows
from sat_slime.grid.plan import Cell
from sat_slime.grid.state import CellState, GridFolder
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.live_view import duration

TAIL_BYTES = 32 * 2**10
"""No line of metrics.jsonl is longer."""
STYLES = {"running": "bold cyan", "failed": "bold red", "interrupted": "yellow", "finished": "green", "planned": "dim"}
"""The states, those first whose rows are kept where there is no room for all."""
PLAIN_WIDTH = 120
"""Columns of the table where there is no terminal."""
FOLLOW_S = 2.0
"""Seconds between looks at a grid that another process runs."""


# ------------------------------------------------------------------------------------------------------- how far it is


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
