"""Charts that the page of W&B exports as CSV, as rows by slime's names.

The first column is the chart's x axis, which slime defines as `train/step`, `rollout/step` or `eval/step`. The others
are named `RUN - METRIC`, each with `__MIN` and `__MAX` beside it. A table of a run's history, as pandas writes it, has
the metrics' own names, and slime's step keys among them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.slime_rows import STEP_KEYS, Row
from sat_slime.runs.trackers.tensorboard_events import step_key

_OWN_AXIS = "Step"
"""W&B's count of log calls, which says nothing of slime's steps."""


def is_exported_csv(path: Path) -> bool:
    """Return whether a file's head is that of such a table."""
    if path.suffix != ".csv":
        return False
    head = _head(path)
    return any(key in head for key in STEP_KEYS) or (head[:1] == [_OWN_AXIS] and len(head) > 1)


def csv_rows(path: Path) -> Iterator[Row]:
    """Yield the rows, without empty cells. Raises RunFolderError where the x axis is none of slime's, or the chart is
    of several runs."""
    head = _head(path)
    if not any(key in head for key in STEP_KEYS):
        raise RunFolderError(
            f"{path}: its x axis is {head[0]!r}, which does not hold slime's steps: set the chart's x axis to "
            f"{step_key(next(filter(_is_metric, map(_metric, head[1:])), 'train/'))} and export it again"
        )
    columns = {i: _metric(name) for i, name in enumerate(head) if not name.endswith(("__MIN", "__MAX"))}
    columns = {i: name for i, name in columns.items() if _is_metric(name)}
    if twice := [name for name in columns.values() if list(columns.values()).count(name) > 1]:
        runs = sorted({name.rpartition(" - ")[0] for name in head if _metric(name) == twice[0]})
        raise RunFolderError(f"{path}: it is a chart of {len(runs)} runs ({', '.join(runs)}): export only one run")
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        for cells in list(csv.reader(file))[1:]:
            row = {name: number for i, name in columns.items() if (number := _number(cells, i)) is not None}
            if row:
                yield row


def _head(path: Path) -> list[str]:
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        return next(csv.reader(file), [])


def _metric(column: str) -> str:
    return column.rpartition(" - ")[2]


def _is_metric(name: str) -> bool:
    """Return whether a name is not of W&B itself, whose own begin with an underscore."""
    return bool(name) and not name.startswith("_")


def _number(cells: Sequence[str], i: int) -> float | None:
    try:
        return float(cells[i])
    except (IndexError, ValueError):
        return None
