"""A grid of runs: its cells, the run of each, and the folder that tells how far they are."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sat_slime.config import ConfigError, GridConfig, build_method, dump_config, load_grid
from sat_slime.config.grid_schema import matches
from sat_slime.config.jsonl import to_json, write_atomically
from sat_slime.config.loader import RunConfig, vary
from sat_slime.runs.folder import RunFolder, RunFolderError, worked_seconds, writable
from sat_slime.runs.lock import FolderLock


@dataclass(unsafe_hash=True)
class Cell:
    """One method at one lag with one seed, and how far it is. It is the same cell however far it is."""

    method: str
    lag: int
    seed: int
    state: str = field(default="planned", compare=False)
    """planned, running, interrupted, failed or finished. An interrupted cell goes on from its newest checkpoint; a
    failed one has no retries left."""
    attempts: int = field(default=0, compare=False)
    """Starts that ended, finished or failed; those that were interrupted do not count."""
    error: str | None = field(default=None, compare=False)
    """The newest failure, in a line."""
    minutes: float = field(default=0.0, compare=False)
    """Minutes of all its starts together, as its run folder has them."""
    note: str | None = field(default=None, compare=False)
    """A remark about a finished run, such as that it collapsed."""

    @property
    def name(self) -> str:
        return f"{self.method}-lag{self.lag}-seed{self.seed}"


def plan_cells(grid: GridConfig) -> list[Cell]:
    """Return every cell, in the order in which they run, seed by seed: so a grid that is ended early has whole seeds,
    in which all methods and lags can be compared."""
    return [Cell(method, lag, seed) for seed in grid.seeds for method in grid.methods for lag in grid.lags]


def select_cells(grid: GridConfig, cells: Sequence[Cell], only: Sequence[str], seeds: Sequence[int]) -> Sequence[Cell]:
    """Return those of a grid's cells that METHOD, METHOD@LAG or @LAG and the seeds choose; default: all. Raises
    ConfigError where one of these chooses nothing."""
    errors = []
    for selector in only:
        try:
            if not any(matches(selector, cell.method, cell.lag) for cell in cells):
                lags = ", ".join(map(str, grid.lags))
                known = f"its methods are {', '.join(grid.methods)}, its lags {lags}"
                errors.append(f"--only {selector}: no cell of the grid; {known}")
        except ValueError as error:
            errors.append(f"--only {error}")
    if unknown := ", ".join(str(seed) for seed in seeds if seed not in grid.seeds):
        known = ", ".join(map(str, grid.seeds))
        errors.append(f"--seeds {unknown}: the grid's seeds are {known}; more of them belong into its file")
    if errors:
        raise ConfigError(errors)
    of_seeds = [cell for cell in cells if not seeds or cell.seed in seeds]
    return [c for c in of_seeds if not only or any(matches(selector, c.method, c.lag) for selector in only)]


def cell_config(grid: GridConfig, file: Path, run: RunConfig, cell: Cell, runs: Path) -> RunConfig:
    """Return the run of a cell. Raises ConfigError.

    Args:
        file: the grid's file, for messages.
        run: the run that all cells are variants of.
        runs: the folder in which the cells' run folders will stand.
    """
    layers: list[tuple[str, Mapping[str, Any]]] = [
        (f"{file}: methods, lags and seeds", {"method": cell.method, "pipeline.lag": cell.lag}),
        (f"{file}: seed_keys", dict.fromkeys(grid.seed_keys, cell.seed)),
        *((f"{file}: overrides", values) for values in grid.overrides_of(cell.method, cell.lag)),
    ]
    config = vary(run, [*layers, (str(file), {"name": cell.name, "output_dir": str(runs)})])
    made = Cell(build_method(config.method).name, config.pipeline.lag, config.seed)
    if made != cell:
        raise ConfigError(
            [
                f"{file}: overrides make the run of {cell.name} that of {made.name}: leave the method's switches, "
                "pipeline.lag and seed to methods, lags and seeds"
            ]
        )
    return config


class GridFolder:
    """Paths, lock and cells of `grids/NAME/`. How far a cell is its run folder tells; only what that cannot know stands
    in the grid's own state.json: attempts, errors, and that a cell is left as failed."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config = self.path / "grid.yaml"
        self.run = self.path / "run.yaml"
        self.state_file = self.path / "state.json"
        self.runs = self.path / "runs"
        self.cells = self.path / "cells"
        self.logs = self.path / "logs"
        self.lock = FolderLock(self.path / ".lock")
        """Held by the process that runs the grid."""

    def is_grid(self) -> bool:
        return self.config.is_file()

    def run_folder(self, cell: Cell) -> RunFolder:
        return RunFolder(self.runs / cell.name)

    def planned(self) -> list[Cell]:
        """Return the cells that grid.yaml names. Raises ConfigError."""
        return plan_cells(load_grid(self.config))

    @contextlib.contextmanager
    def held(self, grid: GridConfig, run: RunConfig, cells: Sequence[Cell]) -> Iterator[None]:
        """Inside, this process alone runs the grid, and the folder says what it is made of. Brings its cells up to
        date. Raises RunFolderError where another process runs it."""
        with writable(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if holder := self.lock.take():
                raise RunFolderError(
                    f"{self.path} is being run by {holder}: look at it with sat-slime status {self.path}, or choose "
                    "another --name"
                )
        try:
            with writable(self.path):
                self.cells.mkdir(exist_ok=True)
                self.logs.mkdir(exist_ok=True)
                self.observe(cells)
                write_atomically(self.run, dump_config(run))
                self.save(cells)
                write_atomically(self.config, dump_config(grid))  # last: a folder that has it is a whole grid's
            yield
        finally:
            self.lock.release()

    def save(self, cells: Sequence[Cell]) -> None:
        """Write state.json: what `observe` cannot see, and what others read, the cells' run folders among it."""
        rows = [{"cell": cell.name, **asdict(cell), "folder": f"{self.runs.name}/{cell.name}"} for cell in cells]
        write_atomically(self.state_file, '{"cells": [\n' + ",\n".join(map(to_json, rows)) + "\n]}\n")

    def observe(self, cells: Sequence[Cell] | None = None) -> Sequence[Cell]:
        """Return cells, brought up to date: what was written last, corrected by the run folders, since a grid that
        was killed had no time to write, and a run may have been finished by hand.

        Args:
            cells: default: those that were written last.

        Raises:
            RunFolderError: state.json cannot be read.
        """
        written = {cell: cell for cell in self._written()}
        elsewhere = not self.lock.is_mine and self.lock.is_held()
        cells = list(written) if cells is None else cells
        for cell in cells:
            vars(cell).update(vars(written.get(cell, cell)))
            if not elsewhere or cell.state != "running":  # a cell that another process calls running is running
                self.correct(cell)
        return cells

    def _written(self) -> list[Cell]:
        try:
            rows = json.loads(self.state_file.read_text(encoding="utf-8"))["cells"]
            return [Cell(**{known.name: row[known.name] for known in fields(Cell)}) for row in rows]
        except FileNotFoundError:
            return []
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{self.state_file} cannot be read ({error}): delete it; how far the cells are is in their run folders"
            ) from None

    def correct(self, cell: Cell) -> None:
        """Take from a cell's run folder how far it is, and how long that took."""
        state = self.run_folder(cell).state()
        status, seconds = state.get("status"), worked_seconds(state)
        if seconds == seconds:
            cell.minutes = round(seconds / 60, 2)
        if status in ("finished", "running"):
            cell.state = status
        elif cell.state != "failed":
            cell.state = "interrupted" if status else "planned"
        if status == "finished":
            cell.error = None
