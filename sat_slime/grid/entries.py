"""The runs and grids below a folder, the newest first, with the newest numbers of each."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from sat_slime.config.jsonl import number
from sat_slime.config.method_section import method_label
from sat_slime.grid.progress import last_row
from sat_slime.grid.state import GridFolder
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.reading import read_yaml, section
from sat_slime.runs.rows import read_rows

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
    """Optimizer steps of the whole run."""
    reward: float | None = None
    d_pi: float | None = None
    accuracy: float | None = None
    """Of the newest evaluation."""
    started: str | None = None
    """The newest start, as state.json has it."""
    report: bool = False
    """Whether report.html is there, and newer than the newest start and all rows."""
    curve: tuple[float, ...] = ()
    """Accuracies of the evaluations, the newest last; without evaluations none."""
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
        for child in sorted(_folders(folder)):
            yield from _below(root, child, depth - 1)


def _entry(root: Path, folder: Path) -> Entry | None:
    """Return what a folder is; None where it is neither, is gone meanwhile, or is not ours to read. A damaged one is an
    entry that says so: it must not hide the others."""
    kind = "grid"
    try:
        if GridFolder(folder).is_grid():
            return _grid(root, GridFolder(folder))
        kind = "run"
        return _run(root, RunFolder(folder)) if RunFolder(folder).is_run() else None
    except OSError:
        return None
    except Exception as error:
        return Entry(str(folder.relative_to(root)), kind, f"damaged: {type(error).__name__}: {error}")


def _folders(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as children:
            for child in children:
                if child.is_dir(follow_symlinks=False) and not child.name.startswith("."):
                    yield Path(child.path)
    except OSError:  # gone meanwhile, or not ours to read
        return


def _grid(root: Path, grid: GridFolder) -> Entry:
    runs = [run for path in sorted(_folders(grid.runs)) if (run := _entry(root, path))]
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


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _run(root: Path, folder: RunFolder) -> Entry:
    config, state = _as_it_is(_config, folder.config) or {}, folder.state()
    status = str(state.get("status", "unknown"))
    newest, evaluation = last_row(folder.metrics), last_row(folder.eval)
    pipeline = section(config, "pipeline")
    iterations = _whole(pipeline.get("iterations"))
    steps = iterations and iterations * (_whole(pipeline.get("optimizer_steps_per_rollout")) or 1)
    return Entry(
        path=str(folder.path.relative_to(root)),
        kind="run",
        status=status,
        method=method_label(section(config, "method")),
        lag=_whole(pipeline.get("lag")),
        seed=_whole(config.get("seed")),
        step=_finite(newest, "step"),
        steps=steps,
        reward=_finite(newest, "reward/mean"),
        d_pi=_finite(newest, "mismatch/d_pi"),
        accuracy=_finite(evaluation, "accuracy"),
        started=str(state["last_started"]) if state.get("last_started") else None,
        report=status != "running" and is_newest(folder),
        curve=_as_it_is(_accuracies, folder.eval) or (),
    )


Read = TypeVar("Read")
SHOWN_EVALUATIONS = 40
"""Evaluations of a curve, at most."""


def is_newest(folder: RunFolder) -> bool:
    """Say whether a run's report was written after its last row: a resume may have gone on since."""
    try:
        written = folder.report.stat().st_mtime
        return all(written >= rows.stat().st_mtime for rows in (folder.metrics, folder.eval) if rows.exists())
    except OSError:
        return False


def _as_it_is(read: Callable[..., Read], path: Path) -> Read | None:
    """Return what a cached function reads in a file, which is read again when it has changed; None where there is
    none."""
    try:
        file = path.stat()
    except OSError:
        return None
    return read(path, file.st_mtime_ns, file.st_size)


@lru_cache(maxsize=4096)
def _config(path: Path, *version: int) -> dict[str, Any]:
    return read_yaml(path)


@lru_cache(maxsize=4096)
def _accuracies(path: Path, *version: int) -> tuple[float, ...]:
    values = (_finite(row, "accuracy") for row in read_rows(path))
    return tuple(round(value, 4) for value in values if value is not None)[-SHOWN_EVALUATIONS:]
