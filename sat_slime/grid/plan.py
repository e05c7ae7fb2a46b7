"""A grid consists of these: its cells, which of them are chosen, and the run of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sat_slime.config import ConfigError, GridConfig, build_method
from sat_slime.config.grid_schema import matches
from sat_slime.config.loader import RunConfig, vary
from sat_slime.config.schema import LabConfig


@dataclass(frozen=True)
class Cell:
    """One method at one lag with one seed, on one task."""

    method: str
    lag: int
    seed: int
    task: str | None = None
    """Its task where the grid has several; None: the run's own."""

    @property
    def name(self) -> str:
        return f"{self.method}-lag{self.lag}-seed{self.seed}" + (f"-on-{self.task}" if self.task else "")


def plan_cells(grid: GridConfig) -> list[Cell]:
    """Return every cell, in the order in which they run, seed by seed: so a grid that is ended early has whole seeds,
    in which all methods and lags can be compared."""
    return [
        Cell(method, lag, seed, task)
        for seed in grid.seeds
        for task in grid.tasks or (None,)
        for method in grid.methods
        for lag in grid.lags
    ]


def select_cells(grid: GridConfig, only: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """Return the cells that METHOD, METHOD@LAG or @LAG and the seeds choose; default: all.

    Raises:
        ConfigError: a selector or a seed chooses nothing.
    """
    lags, known_seeds = (", ".join(map(str, values)) for values in (grid.lags, grid.seeds))
    errors = []
    for selector in only:
        try:
            if not any(matches(selector, method, lag) for method in grid.methods for lag in grid.lags):
                known = f"its methods are {', '.join(grid.methods)}, its lags {lags}"
                errors.append(f"--only {selector}: no cell of the grid; {known}")
        except ValueError as error:
            errors.append(f"--only {error}")
    if unknown := ", ".join(str(seed) for seed in seeds if seed not in grid.seeds):
        errors.append(f"--seeds {unknown}: the grid's seeds are {known_seeds}; more of them belong into its file")
    if errors:
        raise ConfigError(errors)
    return [
        cell
        for cell in plan_cells(grid)
        if (not seeds or cell.seed in seeds)
        and (not only or any(matches(selector, cell.method, cell.lag) for selector in only))
    ]


def cell_config(grid: GridConfig, file: Path, run: RunConfig, cell: Cell, runs: Path) -> RunConfig:
    """Return the run of a cell. Raises ConfigError.

    file: the grid's file, for messages. run: the run that all cells are variants of. runs: the folder in which the
    cells' run folders will stand.
    """
    if cell.task and not isinstance(run, LabConfig):
        raise ConfigError(
            [f"{file}: tasks are for lab runs, and run is one of {run.runtime}: its task is in slime.prompt-data"]
        )
    layers: list[tuple[str, dict[str, Any]]] = [
        (f"{file}: methods, lags and seeds", {"method": cell.method, "pipeline.lag": cell.lag}),
        (f"{file}: seed_keys", dict.fromkeys(grid.seed_keys, cell.seed)),
        *([(f"{file}: tasks", {"task.name": cell.task} | grid.tasks[cell.task])] if cell.task else []),
        *((f"{file}: overrides", dict(values)) for values in grid.overrides_of(cell.method, cell.lag)),
    ]
    config = vary(run, [*layers, (str(file), {"name": cell.name, "output_dir": str(runs)})])
    named = build_method(config.method).name
    if (named, config.pipeline.lag, config.seed) != (cell.method, cell.lag, cell.seed):
        raise ConfigError(
            [
                f"{file}: overrides make the run of {cell.name} one of {named} at lag {config.pipeline.lag} with seed "
                f"{config.seed}: leave the method's switches, pipeline.lag and seed to methods, lags and seeds"
            ]
        )
    if cell.task and isinstance(config, LabConfig) and config.task.name != cell.task:
        raise ConfigError(
            [
                f"{file}: settings make the run of {cell.name} one on {config.task.name}: leave task.name to "
                "tasks, whose keys are its values"
            ]
        )
    return config
