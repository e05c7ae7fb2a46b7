"""The folder of a grid: what was planned, and how far each cell is."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sat_slime.config import GridConfig, dump_config, load_grid
from sat_slime.config.jsonl import to_json, write_atomically
from sat_slime.config.loader import RunConfig
from sat_slime.grid.plan import Cell, plan_cells
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.lock import FolderLock, Holder

STATES = ("planned", "running", "interrupted", "failed", "finished")


@dataclass
class CellState:
    """A row of state.json."""

    cell: Cell
    state: str = "planned"
    """One of STATES. An interrupted cell goes on from its newest checkpoint; a failed one has no retries left."""
    attempts: int = 0
    """Starts that ended, finished or failed; those that were interrupted do not count."""
    error: str | None = None
    """The newest failure, in a line."""
    minutes: float = 0.0
    """Minutes of all its starts together."""
    note: str | None = None
    """A remark about a finished run, such as that it collapsed."""
    started: float | None = None
    """Newest start, in seconds since 1970."""
    ended: float | None = None

    @property
    def folder(self) -> Path:
        """The run folder of the cell, relative to the grid's folder."""
        return Path("runs") / self.cell.name

    def row(self) -> dict[str, Any]:
        return {
            "cell": self.cell.name,
            **dataclasses.asdict(self.cell),
            "folder": str(self.folder),
            "state": self.state,
            "attempts": self.attempts,
            "error": self.error,
            "minutes": round(self.minutes, 2),
            "note": self.note,
            "started": _iso(self.started),
            "ended": _iso(self.ended),
        }

    @classmethod
    def of(cls, row: dict[str, Any]) -> CellState:
        """Return the state that a row of state.json holds. Raises KeyError or ValueError where it is no such row."""
        return cls(
            Cell(row["method"], row["lag"], row["seed"], row.get("task")),
            row["state"],
            row["attempts"],
            row["error"],
            row["minutes"],
            row["note"],
            _seconds(row["started"]),
            _seconds(row["ended"]),
        )


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _seconds(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


class GridFolder:
    """Paths, states and lock of `grids/NAME/`."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config = self.path / "grid.yaml"
        self.run = self.path / "run.yaml"
        self.state_file = self.path / "state.json"
        self.runs = self.path / "runs"
        self.cells = self.path / "cells"
        self.logs = self.path / "logs"
        self._lock = FolderLock(self.path / ".lock")

    def is_grid(self) -> bool:
        return self.config.is_file()

    def check_usable(self) -> None:
        """Raise RunFolderError where the folder holds something else than a grid."""
        if self.path.exists() and not self.is_grid() and any(not f.name.startswith(".") for f in self.path.iterdir()):
            raise RunFolderError(f"{self.path} exists and is not a grid folder: choose another --name")

    def lock(self) -> None:
        """Claim the grid for this process. Raises RunFolderError when another runs it."""
        if holder := self._lock.take():
            raise RunFolderError(
                f"{self.path} is being run by {holder}: look at it with sat-slime status {self.path}, or choose "
                "another --name"
            )

    def unlock(self) -> None:
        self._lock.release()

    def is_running(self) -> bool:
        return self._lock.is_held()

    def holder(self) -> Holder | None:
        """Return the process that runs the grid; None where none does."""
        return self._lock.holder()

    def run_folder(self, cell: CellState) -> RunFolder:
        return RunFolder(self.path / cell.folder)

    def planned(self) -> list[Cell]:
        """Return the cells that grid.yaml names. Raises ConfigError."""
        return plan_cells(load_grid(self.config))

    def begin(self, grid: GridConfig, run: RunConfig) -> list[CellState]:
        """Write down what the grid is made of; returns the states of its cells. The folder has to be locked."""
        self.cells.mkdir(exist_ok=True)
        states = self.observed(plan_cells(grid))
        write_atomically(self.run, dump_config(run))
        self.save(states)
        write_atomically(self.config, dump_config(grid))  # last: a folder that has it is a whole grid's
        return states

    def keep_cell(self, cell: Cell, config: RunConfig) -> Path:
        """Keep the settings that a cell is started with; returns their file."""
        file = self.cells / f"{cell.name}.yaml"
        write_atomically(file, dump_config(config))
        return file

    def save(self, states: Sequence[CellState]) -> None:
        rows = ",\n".join(to_json(state.row()) for state in states)
        write_atomically(self.state_file, f'{{"cells": [\n{rows}\n]}}\n')

    def read(self) -> list[CellState]:
        """Return the states as they were written last. Raises RunFolderError where they cannot be read."""
        try:
            return [CellState.of(row) for row in json.loads(self.state_file.read_text(encoding="utf-8"))["cells"]]
        except FileNotFoundError:
            return []
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{self.state_file} cannot be read ({error}): delete it; how far the cells are is in their run folders"
            ) from None

    def observed(self, cells: Sequence[Cell] | None = None) -> list[CellState]:
        """Return the states as they are: what was written last, corrected by the run folders, since a grid that was
        killed had no time to write, and a run may have been finished by hand. Raises RunFolderError as `read` does.

        cells: the cells to tell of, in this order. Default: those that were written last.
        """
        written = {state.cell: state for state in self.read()}
        wanted = list(written) if cells is None else cells
        elsewhere = not self._lock.is_mine and self._lock.is_held()
        return [self._observe(written.get(cell) or CellState(cell), elsewhere) for cell in wanted]

    def _observe(self, state: CellState, elsewhere: bool) -> CellState:
        """elsewhere: another process runs the grid now, so that a cell which it calls running is running."""
        if elsewhere and state.state == "running":
            return state
        run = self.run_folder(state)
        status = run.state().get("status")
        if state.state == "running" and status != "running":
            state.ended = last_sign(run, state.started)
            state.minutes += max(0.0, state.ended - (state.started or state.ended)) / 60
        if status == "finished":
            now = "finished"
        elif status == "running":
            now = "running"
        elif state.state == "failed":
            now = "failed"
        else:
            now = "interrupted" if status else "planned"
        return dataclasses.replace(state, state=now, error=None if now == "finished" else state.error)


def last_sign(run: RunFolder, otherwise: float | None) -> float:
    """Return when a run last wrote anything, in seconds since 1970."""
    files = [file.stat().st_mtime for file in (run.metrics, run.log, run.state_file) if file.exists()]
    return max([*files, *([otherwise] if otherwise else [])], default=time.time())
