"""The runs and grids below a folder, the newest first, with the newest numbers of each."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
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
    """Relative to the folder that was looked into."""
    kind: str
    """run or grid."""
    status: str
    method: str = ""
    lag: int | None = None
    seed: int | None = None
    step: float | None = None
    steps: int | None = None
    """Optimizer steps of the complete run."""
    reward: float | None = None
    d_pi: float | None = None
    accuracy: float | None = None
    """Of the newest evaluation."""
    started: str | None = None
    """The newest start, as state.json has it."""
    report: bool = False
    """Whether report.html is there, and newer than all rows: a resume may have gone on since."""
    runs: list[Entry] = field(default_factory=list)
    """Of a grid."""


def entries(root: Path) -> list[Entry]:
    """Return the grids and runs below a folder, the newest first; the runs of a grid are in it alone."""
    return sorted(_below(root, root, DEPTH), key=lambda entry: entry.started or "", reverse=True)


def _below(root: Path, folder: Path, depth: int) -> Iterator[Entry]:
    entry = _entry(root, folder)
    if entry is not None:
        if entry.kind == "run" or entry.runs or entry.status != "not running":  # a kept result has no run
            yield entry
    elif depth:
        for child in _folders(folder):
            yield from _below(root, child, depth - 1)


def _entry(root: Path, folder: Path) -> Entry | None:
    """Return what a folder is; None where it is neither, is gone meanwhile, or is not ours to read. A damaged one is an
    entry that says so: it must not hide the others."""
    kind = "grid" if GridFolder(folder).is_grid() else "run"
    try:
        if kind == "grid":
            return _grid(root, GridFolder(folder))
        return _run(root, RunFolder(folder)) if RunFolder(folder).is_run() else None
    except OSError:
        return None
    except Exception as error:
        return Entry(str(folder.relative_to(root)), kind, f"damaged: {type(error).__name__}: {error}")


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as children:
            found = [child for child in children if child.is_dir(follow_symlinks=False)]
    except OSError:  # gone meanwhile, or not ours to read
        return []
    return sorted(Path(child.path) for child in found if not child.name.startswith("."))


def _grid(root: Path, grid: GridFolder) -> Entry:
    runs = [run for path in _folders(grid.runs) if (run := _entry(root, path))]
    return Entry(
        path=str(grid.path.relative_to(root)),
        kind="grid",
        status="running" if grid.is_running() else "not running",
        started=max((run.started for run in runs if run.started), default=None),
        report=(grid.path / "report.html").is_file(),
        runs=runs,
    )


def _run(root: Path, folder: RunFolder) -> Entry:
    config, state = read_yaml(folder.config) if folder.config.exists() else {}, folder.state()
    status = str(state.get("status", "unknown"))
    newest, evaluation = last_row(folder.metrics), last_row(folder.eval)
    pipeline = section(config, "pipeline")
    iterations = _integer(pipeline.get("iterations"))
    steps = iterations and iterations * (_integer(pipeline.get("optimizer_steps_per_rollout")) or 1)
    rows = [file.stat().st_mtime for file in (folder.metrics, folder.eval) if file.exists()]
    written = folder.report.stat().st_mtime if folder.report.exists() else -math.inf
    return Entry(
        path=str(folder.path.relative_to(root)),
        kind="run",
        status=status,
        method=method_label(section(config, "method")),
        lag=_integer(pipeline.get("lag")),
        seed=_integer(config.get("seed")),
        step=_finite(newest, "step"),
        steps=steps,
        reward=_finite(newest, "reward/mean"),
        d_pi=_finite(newest, "mismatch/d_pi"),
        accuracy=_finite(evaluation, "accuracy"),
        started=str(state["last_started"]) if state.get("last_started") else None,
        report=status != "running" and written >= max(rows, default=0.0),
    )


def _finite(row: dict[str, Any], key: str) -> float | None:
    value = number(row, key)
    return value if math.isfinite(value) else None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) else None
