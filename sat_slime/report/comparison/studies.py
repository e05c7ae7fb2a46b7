"""A study: grids side by side in a folder, of which the others vary one, the base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sat_slime.grid.state import GridFolder
from sat_slime.report.comparison.compared_runs import Collection, collect, told_settings
from sat_slime.report.comparison.contrasts import Comparison, Scores
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.reading import read_yaml, section

RADII = ("method.clip.eps_low", "method.clip.eps_high")
"""The settings of PPO's interval."""
PROBLEM = ("model", "task")
"""The sections that say what learns, and what it learns: accuracies of two problems share no scale."""


class StudyGrid(Comparison):
    """A grid of a study: a comparison that can be compared with others."""

    def __init__(self, name: str, collection: Collection, settings: Mapping[str, Any], alone: bool):
        """settings: those of its runs by dotted keys, but for those of a cell and those that compute nothing. alone:
        whether its cells ran one at a time, so that their times are those of a machine of their own."""
        super().__init__(collection)
        self.name, self.settings, self.alone = name, settings, alone

    @property
    def lags(self) -> list[int]:
        """Lags with whole runs."""
        return sorted({run.lag for run in self.collection.runs if run.counts and run.lag is not None})

    @property
    def methods(self) -> list[str]:
        """Methods with whole runs."""
        methods = self.collection.methods
        return [method for method in methods if any(self.collection.of(method, lag) for lag in self.lags)]

    @property
    def whole_lags(self) -> list[int]:
        """Lags at which some method has every seed that the grid has anywhere."""
        by_lag = {lag: [set(self.scores(method, lag, "late")) for method in self.methods] for lag in self.lags}
        seeds = set().union(*(scores for every in by_lag.values() for scores in every))
        return [lag for lag, every in by_lag.items() if seeds in every]

    @property
    def size(self) -> int:
        """Runs that there are."""
        return len(self.collection.runs)

    def clipped(self, method: str, lag: int) -> Scores:
        """Return {seed: the share of the tokens that the clip takes the gradient of, mean over all steps}."""
        by_seed = {}
        for run in self.collection.of(method, lag):
            shares = run.data.metrics.get("clip/fraction", np.zeros(0))
            if run.seed is not None and np.isfinite(shares).any():
                by_seed[run.seed] = float(np.nanmean(shares))
        return by_seed

    @cached_property
    def radius(self) -> float | None:
        """The clip's radius; None where the two ends differ."""
        low, high = (self.settings.get(key) for key in RADII)
        return low if low == high else None

    @property
    def radius_text(self) -> str:
        """The clip's radii in words."""
        if self.radius is not None:
            return f"radius {self.radius:g}"
        return "radii " + " and ".join(f"{self.settings.get(key)}" for key in RADII)


@dataclass(frozen=True)
class Study:
    """Grids that share seeds, so that all of them are paired."""

    base: StudyGrid
    others: Sequence[StudyGrid]

    @property
    def grids(self) -> list[StudyGrid]:
        """All grids, the base first."""
        return [self.base, *self.others]

    def changed(self, grid: StudyGrid) -> dict[str, Any]:
        """Return the settings in which a grid differs from the base."""
        return _changed(self.base, grid)

    def of_one_problem(self, grid: StudyGrid) -> bool:
        """Say whether the base's model learns the base's task in a grid, so that the two may be compared."""
        return not any(key.split(".")[0] in PROBLEM for key in self.changed(grid))

    @property
    def methods(self) -> list[str]:
        """Methods of all grids, those of the base first."""
        return list(dict.fromkeys(method for grid in self.grids for method in grid.methods))

    @property
    def sweeps(self) -> list[StudyGrid]:
        """Grids with at least three lags that some method has run whole, lag 1 among them. Another radius of the clip
        is no sweep of its own: it is read against the base's."""
        radii = [grid for grid in self.by_radius.values() if grid is not self.base]
        grids = [grid for grid in self.grids if grid not in radii and not grid.alone]
        return [grid for grid in grids if len(grid.whole_lags) > 2 and 1 in grid.whole_lags]

    @property
    def variants(self) -> list[StudyGrid]:
        """Grids that are no sweep and vary the base in a setting, but in no part of the problem, in the order of the
        names."""
        grids = [grid for grid in self.others if self.changed(grid) and self.of_one_problem(grid)]
        return [grid for grid in grids if grid not in self.sweeps and not grid.alone]

    @property
    def by_radius(self) -> dict[float, StudyGrid]:
        """Grids that differ from the base in the clip's radius alone, and the base itself."""
        same = [grid for grid in self.others if self.changed(grid) and set(self.changed(grid)) <= set(RADII)]
        return {grid.radius: grid for grid in [self.base, *same] if grid.radius is not None}


def is_study(path: str | Path) -> bool:
    """Say whether a folder holds grids and is none itself."""
    return not GridFolder(path).is_grid() and len(_grids_in(Path(path))) > 1


def load_study(path: str | Path) -> Study:
    """Read the grids of a folder. The base is the one from which the others differ in the fewest settings; of
    several such, the one with the most runs.

    Raises:
        RunFolderError: none of them has a run yet.
    """
    grids = [_load(folder) for folder in _grids_in(Path(path))]
    grids = [grid for grid in grids if grid.lags]
    if not grids:
        raise RunFolderError(f"{path} holds no grid with a finished run yet: there is nothing to report")
    base = min(grids, key=lambda grid: (sum(len(_changed(grid, other)) for other in grids), -grid.size, grid.name))
    return Study(base, [grid for grid in grids if grid is not base])


def _grids_in(path: Path) -> list[Path]:
    return sorted(file.parent for file in path.glob("*/grid.yaml"))


def _load(path: Path) -> StudyGrid:
    folder = GridFolder(path)
    run = read_yaml(folder.run)
    # A method's name says its denominator unless the grid sets one for all of its cells.
    settings = {**told_settings(run), "method.denominator": section(run, "method").get("denominator")}
    return StudyGrid(path.name, collect([path]), settings, read_yaml(folder.config).get("parallel") == 1)


def _changed(base: StudyGrid, grid: StudyGrid) -> dict[str, Any]:
    keys = sorted(base.settings.keys() | grid.settings.keys())
    return {key: grid.settings.get(key) for key in keys if base.settings.get(key) != grid.settings.get(key)}
