"""The runs and grids below a folder, as far as their files tell of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sat_slime.config.jsonl import number
from sat_slime.config.method_section import method_label
from sat_slime.grid.progress import last_row
from sat_slime.grid.state import GridFolder
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.reading import read_yaml, section

DEPTH = 4
"""Folders below the first one that are looked into."""


@dataclass(frozen=True)
class Entry:
    """A run, or a grid with its runs."""

    path: str
    """Relative to the folder that is served."""
    kind: str
    """run or grid."""
    status: str
    method: str = ""
    lag: int | None = None
    seed: int | None = None
    step: float | None = None
    steps: int | None = None
    """Optimizer steps of the whole run."""
    reward: float | None = None
    d_pi: float | None = None
    accuracy: float | None = None
    """Of the newest evaluation."""
    started: str | None = None
    report: bool = False
    """Whether report.html is there."""
    runs: list[Entry] = field(default_factory=list)
    """Of a grid."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def entries(root: Path) -> list[Entry]:
    """Grids and runs below a folder, the newest first; the runs of a grid are in it alone."""
    return sorted(_below(root, root, DEPTH), key=lambda entry: entry.started or "", reverse=True)


def _below(root: Path, folder: Path, depth: int) -> Iterator[Entry]:
    try:
        found = _entry(root, folder)
    except OSError:  # gone meanwhile, or not ours to read
        return
    if found is not None:
        if found.kind == "run" or found.runs or found.status == "running":  # a kept result has no run
            yield found
    elif depth:
        for child in sorted(_folders(folder)):
            yield from _below(root, child, depth - 1)


def _entry(root: Path, folder: Path) -> Entry | None:
    if GridFolder(folder).is_grid():
        return _grid(root, GridFolder(folder))
    return _run(root, RunFolder(folder)) if RunFolder(folder).is_run() else None


def _folders(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    yield Path(entry.path)
    except OSError:  # gone meanwhile, or not ours to read
        return


def _grid(root: Path, grid: GridFolder) -> Entry:
    runs = [_run(root, RunFolder(path)) for path in sorted(_folders(grid.runs)) if RunFolder(path).is_run()]
    return Entry(
        path=str(grid.path.relative_to(root)),
        kind="grid",
        status="running" if grid.is_running() else "not running",
        started=max((run.started for run in runs if run.started), default=None),
        report=(grid.path / "report.html").is_file(),
        runs=runs,
    )


def _finite(row: dict[str, Any], key: str) -> float | None:
    value = number(row, key)
    return value if math.isfinite(value) else None


def _run(root: Path, folder: RunFolder) -> Entry:
    config, state = read_yaml(folder.config), folder.state()
    newest, evaluation = last_row(folder.metrics), last_row(folder.eval)
    pipeline = section(config, "pipeline")
    iterations = pipeline.get("iterations")
    steps = iterations * (pipeline.get("optimizer_steps_per_rollout") or 1) if isinstance(iterations, int) else None
    return Entry(
        path=str(folder.path.relative_to(root)),
        kind="run",
        status=str(state.get("status", "unknown")),
        method=method_label(section(config, "method")),
        lag=pipeline.get("lag"),
        seed=config.get("seed"),
        step=_finite(newest, "step"),
        steps=steps,
        reward=_finite(newest, "reward/mean"),
        d_pi=_finite(newest, "mismatch/d_pi"),
        accuracy=_finite(evaluation, "accuracy"),
        started=state.get("last_started"),
        report=folder.report.is_file(),
    )
