"""A grid as typed data: one run, repeated over methods, lags and seeds."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator

from sat_slime.config.schema import NonNegativeInt, PositiveInt, Section
from sat_slime.objective import PAPER_METHODS, named_method


def matches(selector: str, method: str, lag: int) -> bool:
    """Return whether `METHOD`, `METHOD@LAG` or `@LAG` means cells of this method and lag; METHOD may hold `*` and `?`.

    Raises ValueError when what follows the `@` is not a number.
    """
    pattern, at, number = selector.partition("@")
    if at and not number.isdigit():
        raise ValueError(f"{selector!r} is not METHOD, METHOD@LAG or @LAG, such as sat-gspo-r3@8")
    return fnmatch.fnmatchcase(method, pattern or "*") and (not at or int(number) == lag)


class GridConfig(Section):
    """One run over methods x lags x seeds. A cell is one of each."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "grid"
    """Name of the grid and of its folder."""
    output_dir: str = "grids"
    """Folder that holds the grid folders, relative to where the command is given."""
    run: str = "run.yaml"
    """YAML file of the run that every cell is a variant of, relative to this file."""
    methods: Annotated[
        list[str], Field(min_length=1, default_factory=lambda: [method.name for method in PAPER_METHODS])
    ]
    """Named methods; unset: the paper's thirteen."""
    lags: Annotated[list[NonNegativeInt], Field(min_length=1, default_factory=lambda: [1, 8])]
    """Values of pipeline.lag."""
    seeds: Annotated[list[NonNegativeInt], Field(min_length=1, default_factory=lambda: [0, 1, 2])]
    """Seeds. The grid runs one after the other: all cells of the first, then all of the second."""
    seed_keys: Annotated[list[str], Field(min_length=1, default_factory=lambda: ["seed"])]
    """Settings of the run that take the cell's seed. With warmup.seed among them each seed has an initial model of its
    own, which all methods and lags of that seed share."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of every cell, laid over the run's."""
    overrides: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of some cells by METHOD, METHOD@LAG or @LAG (`sat-*@8` works too), the later ones laid over the earlier
    ones."""
    parallel: PositiveInt | None = None
    """Cells that run at the same time. Unset: as many as the machine has cores and memory for; of slime one."""
    retries: NonNegativeInt = 2
    """Times that a cell which failed is started again, from its newest checkpoint, before the grid leaves it."""

    @field_validator("methods")
    @classmethod
    def _known(cls, methods: list[str]) -> list[str]:
        """Return the full names: `mis-geo` is `grpo-mis-geo`."""
        return [named_method(name).name for name in methods]

    @field_validator("methods", "lags", "seeds")
    @classmethod
    def _once(cls, values: list[Any]) -> list[Any]:
        if repeated := sorted({str(value) for value in values if values.count(value) > 1}):
            raise ValueError(f"{', '.join(repeated)} more than once: remove it")
        return values

    @field_validator("overrides")
    @classmethod
    def _meant(cls, overrides: dict[str, dict[str, Any]], info: Any) -> dict[str, dict[str, Any]]:
        methods, lags = info.data.get("methods", []), info.data.get("lags", [])
        for selector in overrides:
            if not any(matches(selector, method, lag) for method in methods for lag in lags) and methods and lags:
                raise ValueError(f"{selector} is no cell of the grid: name one of its methods, with @LAG if need be")
        return overrides

    def overrides_of(self, method: str, lag: int) -> list[Mapping[str, Any]]:
        """Return the overrides of a cell, in the order in which they are laid on."""
        return [values for selector, values in self.overrides.items() if matches(selector, method, lag)]
