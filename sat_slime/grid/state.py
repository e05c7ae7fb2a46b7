"""The folder of a grid: what was planned, and how far each cell is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sat_slime.config import GridConfig, dump_config, load_grid
from sat_slime.config.jsonl import to_json, write_atomically
from sat_slime.config.loader import RunConfig
from sat_slime.grid.plan import Cell, plan_cells
from sat_slime.runs.folder import RunFolder, RunFolderError, worked_seconds
from sat_slime.runs.lock import FolderLock, Holder


@dataclass
class CellState:
    """A row of state.json."""

    cell: Cell
    state: str = "planned"
    """planned, running, interrupted, failed or finished. An interrupted cell goes on from its newest checkpoint; a
    failed one has no retries left."""
    attempts: int = 0
    """Starts that ended, finished or failed; those that were interrupted do not count."""
    error: str | None = None
    """The newest failure, in a line."""
    minutes: float = 0.0
    """Minutes of all its starts together, as its run folder has them."""
    note: str | None = None
    """A remark about a finished run, such as that it collapsed."""

    def row(self) -> dict[str, Any]:
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[1:]}
        return {"cell": self.cell.name, **dataclasses.asdict(self.cell), **own}

    @classmethod
    def of(cls, row: dict[str, Any]) -> CellState:
        """Return the state that a row of state.json holds. Raises KeyError where it is no such row."""
        cell = Cell(row["method"], row["lag"], row["seed"], row.get("task"))
        return cls(cell, row["state"], row["attempts"], row["error"], row["minutes"], row["note"])

    def take_minutes(self, run: RunFolder) -> None:
        """Take the time that the run's folder tells, which a run that was killed had no time to write."""
        seconds = worked_seconds(run.state())
        if seconds == seconds:
            self.minutes = round(seconds / 60, 2)


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

    def run_folder(self, cell: Cell) -> RunFolder:
        return RunFolder(self.runs / cell.name)

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
        elsewhere = not self._lock.is_mine and self._lock.is_held()
        states = [written.get(cell) or CellState(cell) for cell in (written if cells is None else cells)]
        for state in states:
            if not elsewhere or state.state != "running":  # a cell that another process calls running is running
                self._correct(state)
        return states

    def _correct(self, state: CellState) -> None:
        run = self.run_folder(state.cell)
        status = run.state().get("status")
        state.take_minutes(run)
        if status in ("finished", "running"):
            state.state = status
        elif state.state != "failed":
            state.state = "interrupted" if status else "planned"
        if status == "finished":
            state.error = None
