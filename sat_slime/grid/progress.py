"""The progress of a grid's cells, and an estimate of the time that is left."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sat_slime.config.grid_schema import CostConfig
from sat_slime.config.jsonl import number, parse_object, read_rows
from sat_slime.grid.plan import Cell
from sat_slime.grid.state import CellState, GridFolder

TAIL_BYTES = 32 * 2**10
"""No line of metrics.jsonl is longer."""


@dataclass(frozen=True)
class CellSize:
    """The amount of work in a cell."""

    iterations: int
    steps: int
    """Optimizer steps."""


@dataclass(frozen=True)
class Progress:
    """The newest numbers of a cell's run; NaN where it lacks one."""

    step: int = 0
    iteration: int = 0
    reward: float = math.nan
    d_pi: float = math.nan
    accuracy: float = math.nan
    seconds_per_iteration: float = math.nan
    collapsed: bool = False
    """True where the run says that it meets the collapse rule."""


class ProgressReader:
    """The progress of cells, read again only where their files have grown."""

    def __init__(self, folder: GridFolder):
        self._folder = folder
        self._rows: dict[Path, tuple[int, dict[str, Any]]] = {}

    def of(self, state: CellState) -> Progress:
        run = self._folder.run_folder(state)
        newest, evaluation = self._last_row(run.metrics), self._last_row(run.eval)
        step = int(number(newest, "step", 0))
        return Progress(
            step,
            int(number(newest, "iteration", step)),
            number(newest, "reward/mean"),
            number(newest, "mismatch/d_pi"),
            number(evaluation, "accuracy"),
            number(newest, "time/step"),
            number(newest, "collapse/met", 0.0) > 0,
        )

    def _last_row(self, path: Path) -> dict[str, Any]:
        size = path.stat().st_size if path.exists() else 0
        if path not in self._rows or self._rows[path][0] != size:
            self._rows[path] = size, last_row(path)
        return self._rows[path][1]


def last_row(path: Path) -> dict[str, Any]:
    """Return the last whole line of a JSON-lines file; empty where there is none."""
    if not path.exists():
        return {}
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().splitlines()
    for line in reversed(lines):
        if row := parse_object(line):
            return row
    rows = read_rows(path)
    return rows[-1] if rows else {}


@dataclass(frozen=True)
class Expectation:
    """The time that a cell takes from beginning to end."""

    minutes: float
    """NaN where nothing is known."""
    source: str


def expect(
    cell: Cell, states: Sequence[CellState], size: CellSize, running_s: Sequence[float], cost: CostConfig
) -> Expectation:
    """Return what a cell takes: as finished cells of its task took, those of the same lag where there are any; else
    from the steps of running ones; else from the grid's own `cost`.

    running_s: seconds per iteration of the cells that run.
    """
    of_task = [state for state in states if state.cell.task == cell.task]
    finished = [state for state in of_task if state.state == "finished" and state.minutes > 0]
    same_lag = [state.minutes for state in finished if state.cell.lag == cell.lag]
    if same_lag:
        return Expectation(statistics.median(same_lag), "measured: finished cells of the same lag, median")
    if finished:
        return Expectation(statistics.median(s.minutes for s in finished), "measured: finished cells, median")
    if known := [seconds for seconds in running_s if seconds == seconds]:
        seconds, source = statistics.median(known), "measured: newest steps of the running cells"
    elif cost.seconds_per_iteration is not None:
        seconds = cost.seconds_per_iteration
        source = f"not measured: the grid file's {seconds:g} s an iteration"
    else:
        return Expectation(math.nan, "unknown until a cell has run: cost.seconds_per_iteration is not set")
    return Expectation((cost.start_s + size.iterations * seconds) / 60, source)


@dataclass(frozen=True)
class Outlook:
    """The work that is left of a grid."""

    cell_minutes: float
    """Mean over the cells that are not finished; NaN where unknown."""
    minutes_left: float
    """Minutes by the clock, with as many cells side by side as the grid runs."""
    machine_minutes_left: float
    """Minutes of all cells, one after the other."""
    source: str
    left: Mapping[Cell, float]
    """Minutes left of each cell that is not finished."""


def outlook(
    states: Sequence[CellState],
    wanted: Sequence[Cell],
    sizes: Mapping[Cell, CellSize],
    reader: ProgressReader,
    cost: CostConfig,
    parallel: int,
) -> Outlook:
    """Return the time left for the wanted cells that are neither finished nor failed."""
    chosen = set(wanted)
    open_ones = [s for s in states if s.cell in chosen and s.state not in ("finished", "failed")]
    progress = {state.cell: reader.of(state) for state in open_ones}
    running_s = [progress[s.cell].seconds_per_iteration for s in open_ones if s.state == "running"]
    left: dict[Cell, float] = {}
    whole: list[float] = []
    sources: dict[str, None] = {}
    for state in open_ones:
        size = sizes[state.cell]
        expected = expect(state.cell, states, size, running_s, cost)
        left[state.cell] = expected.minutes * (1 - min(1.0, progress[state.cell].step / size.steps))
        whole.append(expected.minutes)
        sources[expected.source] = None
    total = sum(left.values())
    side_by_side = max(1, min(parallel, len(open_ones)))
    longest = max(left.values(), default=0.0)
    return Outlook(
        statistics.fmean(whole) if whole else math.nan,
        max(total / side_by_side, longest) if total == total else math.nan,
        total,
        "; ".join(sources),
        left,
    )
