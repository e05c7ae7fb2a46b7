"""The view of a grid: a table that repaints itself, or one line per event where there is no terminal."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sat_slime.config import GridConfig
from sat_slime.grid.plan import Cell
from sat_slime.grid.progress import CellSize, Outlook, Progress, ProgressReader
from sat_slime.grid.state import STATES, CellState
from sat_slime.runs.live_view import duration

STYLES = {"planned": "dim", "running": "bold cyan", "interrupted": "yellow", "failed": "bold red", "finished": "green"}
URGENCY = {"running": 0, "failed": 1, "interrupted": 2, "finished": 3, "planned": 4}
"""The rows to keep where there is no room for all: the lowest numbers first."""
OTHER_LINES = 8
"""Lines of the live view beside the table's rows."""
MESSAGES = 3


class GridStatus:
    """The states of a grid, and how they are shown."""

    def __init__(
        self,
        name: str,
        states: Sequence[CellState],
        wanted: Sequence[Cell],
        sizes: Mapping[Cell, CellSize],
        reader: ProgressReader,
        look_ahead: Callable[[], Outlook],
    ):
        """wanted: the cells that are to be run now. look_ahead: tells the time left."""
        self.name = name
        self.states = states
        self.wanted = wanted
        self.sizes = sizes
        self.reader = reader
        self.look_ahead = look_ahead

    def headline(self) -> str:
        """Return `12 of 78 finished, 1 running, 65 planned; 2 h 40 min left`."""
        chosen = set(self.wanted)
        counts = Counter(state.state for state in self.states if state.cell in chosen)
        others = ", ".join(f"{counts[state]} {state}" for state in URGENCY if state != "finished" and counts[state])
        line = f"{counts['finished']} of {len(self.wanted)} finished" + (f", {others}" if others else "")
        left = self.look_ahead().minutes_left
        return line + (f"; {duration(60 * left)} left" if left > 0 else "")

    def table(self, rows: int | None = None) -> RenderableType:
        """Return a table of the cells in the grid's order. rows: how many fit, the most urgent ones; default: all."""
        left = self.look_ahead().left
        shown = list(self.states)
        if rows is not None and len(shown) > rows:
            newest = {id(s): -(s.ended or 0) for s in shown}
            kept = sorted(shown, key=lambda s: (URGENCY[s.state], newest[id(s)]))[: max(1, rows)]
            kept_ids = {id(state) for state in kept}
            shown = [state for state in shown if id(state) in kept_ids]
        table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
        for heading in ("cell", "state", "step", "reward", "d_pi", "eval", "time"):
            table.add_column(heading, justify="left" if heading in ("cell", "state") else "right", no_wrap=True)
        for state in shown:
            table.add_row(*self._row(state, left))
        remarks = [(state.cell.name, remark(state, self.reader.of(state))) for state in shown]
        lines: list[RenderableType] = [Text(f"{cell}: {text}") for cell, text in remarks if text]
        if len(shown) < len(self.states):
            lines.insert(0, Text(f"and {len(self.states) - len(shown)} more", style="dim"))
        return Group(table, *([Text(""), *lines] if lines else []))

    def _row(self, state: CellState, left: Mapping[Cell, float]) -> list[RenderableType]:
        progress = self.reader.of(state)
        rest = left.get(state.cell, math.nan)
        if state.state == "running" and rest == rest:
            clock = f"{duration(60 * rest)} left"
        else:
            clock = duration(60 * state.minutes) if state.minutes else ""
        return [
            state.cell.name,
            Text(state.state, style=STYLES[state.state]),
            f"{progress.step}/{self.sizes[state.cell].steps}" if state.state != "planned" else "",
            _shown(progress.reward, ".3f"),
            _shown(progress.d_pi, ".4f"),
            _shown(progress.accuracy, ".3f"),
            clock,
        ]


def remark(state: CellState, progress: Progress) -> str:
    """Return what a row cannot hold: the cell's error, its collapse, its attempts."""
    parts = [state.error] if state.error else []
    if state.note:
        parts.append(state.note)
    elif progress.collapsed:
        parts.append("meets the collapse rule")
    if state.attempts > 1:
        parts.append(f"{state.attempts} attempts")
    return "; ".join(parts)


def _shown(value: float, form: str) -> str:
    return format(value, form) if value == value else ""


def matrix(grid: GridConfig, states: Sequence[CellState], wanted: Sequence[Cell]) -> Table:
    """Return a table of methods, on each task of several, by lags: how many of the seeds are in which state."""
    chosen = set(wanted)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    for lag in grid.lags:
        table.add_column(f"lag {lag}", no_wrap=True)
    for task, method in itertools.product(grid.tasks or (None,), grid.methods):
        texts = []
        for lag in grid.lags:
            cells = {Cell(method, lag, seed, task) for seed in grid.seeds} & chosen
            of_it = [state for state in states if state.cell in cells]
            counts = Counter(state.state for state in of_it)
            texts.append(", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]) or "–")
        table.add_row(f"{method} on {task}" if task else method, *texts)
    return table


class PlainGridView:
    """One line per event."""

    def __init__(self, status: GridStatus, console: Console):
        self._status = status
        self._console = console

    def event(self, state: CellState, text: str) -> None:
        parts = [f"{time.strftime('%H:%M:%S')}  {state.cell.name}: {text}"]
        if state.state in ("finished", "failed"):
            progress = self._status.reader.of(state)
            numbers = (("reward", progress.reward, ".3f"), ("accuracy", progress.accuracy, ".3f"))
            parts += [f"{name} {value:{form}}" for name, value, form in numbers if value == value]
            parts += [f"d_pi {progress.d_pi:.4f}"] if progress.d_pi == progress.d_pi else []
            parts.append(duration(60 * state.minutes))
        self.message("  ".join(parts))
        if state.state in ("finished", "failed"):
            self.message(f"          {self._status.headline()}")

    def message(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def refresh(self) -> None:
        pass

    def __enter__(self) -> PlainGridView:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class LiveGridView:
    """The table, repainted every second."""

    def __init__(self, status: GridStatus, console: Console):
        self._status = status
        self._console = console
        self._messages: list[str] = []
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._painted = 0.0

    def event(self, state: CellState, text: str) -> None:
        self.message(f"{time.strftime('%H:%M:%S')}  {state.cell.name}: {text}")

    def message(self, text: str) -> None:
        self._messages = [*self._messages, text][-MESSAGES:]
        self._paint()

    def refresh(self) -> None:
        if time.monotonic() - self._painted >= 1:
            self._paint()

    def _paint(self) -> None:
        remarks = sum(bool(remark(state, self._status.reader.of(state))) for state in self._status.states)
        rows = max(3, self._console.height - OTHER_LINES - min(remarks, self._console.height // 3))
        head = Text.from_markup(f"[bold]{escape(self._status.name)}[/]  {self._status.headline()}")
        lines = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in self._messages]
        self._live.update(Group(head, Text(""), self._status.table(rows), Text(""), *lines), refresh=True)
        self._painted = time.monotonic()

    def __enter__(self) -> LiveGridView:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
