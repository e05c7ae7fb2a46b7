"""A grid of runs: its cells, the run of each, and the folder that tells how far they are."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sat_slime.config import ConfigError, GridConfig, build_method, dump_config
from sat_slime.config.jsonl import write_atomically
from sat_slime.config.loader import RunConfig, vary
from sat_slime.config.schema import matches
from sat_slime.runs.folder import RunFolder, RunFolderError, worked_seconds, writable
from sat_slime.runs.lock import FolderLock


@dataclass(frozen=True)
class Cell:
    """One method at one lag with one seed."""

    method: str
    lag: int
    seed: int

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
                known = f"its methods are {', '.join(grid.methods)}, its lags {', '.join(map(str, grid.lags))}"
                errors.append(f"--only {selector}: no cell of the grid; {known}")
        except ValueError as error:
            errors.append(f"--only {error}")
    if unknown := ", ".join(str(seed) for seed in seeds if seed not in grid.seeds):
        known = ", ".join(map(str, grid.seeds))
        errors.append(f"--seeds {unknown}: the grid's seeds are {known}; more of them belong into its file")
    if errors:
        raise ConfigError(*errors)
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
        (f"{file}: seeds, by seed_keys", dict.fromkeys(grid.seed_keys, cell.seed)),
    ]
    chosen = (values for selector, values in grid.overrides.items() if matches(selector, cell.method, cell.lag))
    layers += [(f"{file}: overrides", values) for values in chosen]
    config = vary(run, [*layers, (str(file), {"name": cell.name, "output_dir": str(runs)})])
    made = Cell(build_method(config.method).name, config.pipeline.lag, config.seed)
    if made.seed != cell.seed and "seed" not in grid.seed_keys:
        raise ConfigError(f"{file}: seed_keys is {', '.join(grid.seed_keys)}, without seed: add it")
    if made != cell:
        raise ConfigError(
            f"{file}: overrides make the run of {cell.name} that of {made.name}: leave the method's switches, "
            "pipeline.lag and seed to methods, lags and seeds"
        )
    return config


class GridFolder:
    """Paths and lock of `grids/NAME/`. How far a cell is its run folder tells, and why a start of it failed what that
    printed: the grid itself notes nothing."""

    START = "--- "
    """The line before the output of each start of a cell begins with it."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config = self.path / "grid.yaml"
        self.run = self.path / "run.yaml"
        self.runs = self.path / "runs"
        self.cells = self.path / "cells"
        self.logs = self.path / "logs"
        self.lock = FolderLock(self.path / ".lock")
        """Held by the process that runs the grid."""

    def is_grid(self) -> bool:
        return self.config.is_file()

    def has_begun(self) -> bool:
        """Return whether a grid was started here: the file alone may be what `init grid` wrote."""
        return self.is_grid() and self.cells.is_dir()

    @contextlib.contextmanager
    def held(self, grid: GridConfig, run: RunConfig) -> Iterator[None]:
        """Inside, this process alone runs the grid, and the folder says what it is made of. Raises RunFolderError where
        another process runs it."""
        with writable(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if holder := self.lock.take():
                raise RunFolderError(
                    f"{self.path} is being run by {holder}: look at it with sat-slime status "
                    f"{shlex.quote(str(self.path))}, or choose another --name"
                )
        try:
            with writable(self.path):
                self.cells.mkdir(exist_ok=True)
                self.logs.mkdir(exist_ok=True)
                write_atomically(self.run, dump_config(run))
                write_atomically(self.config, dump_config(grid))  # last: a folder that has it is a whole grid's
            yield
        finally:
            self.lock.release()

    def run_folder(self, cell: Cell) -> RunFolder:
        return RunFolder(self.runs / cell.name)

    def output(self, cell: Cell) -> Path:
        """Return the file of what the processes of a cell printed."""
        return self.logs / f"{cell.name}.txt"

    def state(self, cell: Cell) -> str:
        """Return planned, running, interrupted, failed or finished; interrupted and failed cells go on."""
        status = self.run_folder(cell).state().get("status")
        if status is None:
            return "failed" if self.error(cell) else "planned"
        known = {"finished": "finished", "running": "running", "restarting": "running", "failed": "failed"}
        return known.get(str(status), "interrupted")

    def error(self, cell: Cell) -> str | None:
        """Return the last error that the newest start of a cell printed, since one that was refused notes none, else
        what its run has noted."""
        printed = self.output(cell).read_text(encoding="utf-8", errors="replace") if self.output(cell).exists() else ""
        lines = printed.rpartition(f"\n{self.START}")[2].splitlines()
        errors = [line for line in lines if line.startswith("error: ") and line != "error: interrupted"]
        return errors[-1].removeprefix("error: ") if errors else self.run_folder(cell).state().get("error")

    def minutes(self, cell: Cell) -> float:
        """Return the minutes that all starts of a cell took together; NaN while it goes on."""
        return worked_seconds(self.run_folder(cell).state()) / 60
