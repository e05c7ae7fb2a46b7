"""The plan of a grid: its cells, each checked as a run of its own, and what they are expected to cost."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sat_slime.cli.lab_run.lab_findings import ENGINE_MEMORY_GIB
from sat_slime.cli.run_plan import settings_errors
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
from sat_slime.config.loader import RunConfig, vary
from sat_slime.config.method_section import SETTINGS, section_name
from sat_slime.config.section import kept_changes
from sat_slime.grid.plan import Cell, cell_config, plan_cells, select_cells
from sat_slime.grid.state import GridFolder
from sat_slime.objective import named_method
from sat_slime.runs.folder import RunFolder, RunFolderError

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
        pipeline = self.configs[cell].pipeline
        return pipeline.iterations * pipeline.optimizer_steps_per_rollout

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
