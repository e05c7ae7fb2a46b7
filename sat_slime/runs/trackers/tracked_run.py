"""One run out of whatever its trackers left: TensorBoard events, W&B exports, slime's log, JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sat_slime.config.jsonl import read_rows
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.reading import RunData
from sat_slime.runs.rows import columns, not_finite
from sat_slime.runs.slime_rows import Row, adopt, is_slime_log, split_log
from sat_slime.runs.trackers.exported_csv import csv_rows, is_exported_csv
from sat_slime.runs.trackers.job_log import holds_metrics, log_rows
from sat_slime.runs.trackers.tensorboard_events import event_files, event_rows, is_event_file

READABLE = (
    "a folder or file of TensorBoard events, a chart that W&B exported as CSV, slime's own log (what the job printed), "
    "or JSON lines of what slime gives its trackers"
)
WANDB_SAYS = (
    "it is a run folder of W&B, whose files no public Python package reads any more. The log that the job printed has "
    "the same numbers: give that. Or export from the server, as docs/diagnose.md shows: a chart as CSV, or the "
    "whole history as JSON lines"
)


@dataclass(frozen=True)
class TrackedRun:
    """A run as its trackers alone know it."""

    metrics: list[Row]
    """Rows as those of metrics.jsonl, in the order of their steps, which count updates made."""
    evals: list[Row]
    """Rows as those of eval.jsonl, of one data set."""

    def data(self) -> RunData:
        """Return the columns of both, by our names."""
        metrics = [adopt(row) for row in self.metrics]
        return RunData(columns(metrics), columns(self.evals), not_finite=not_finite(metrics))


def is_tracker(path: Path) -> bool:
    """Return whether a path holds what a tracker or the job's log left, so that `read_tracked` would read it."""
    return _kind(path) is not None


def read_tracked(paths: Sequence[Path]) -> TrackedRun:
    """Return one run, from one or several files and folders of its trackers, whose rows are put together by their
    steps.

    Raises:
        RunFolderError: a path is not there or of another kind, or nothing in it is a metric of slime.
    """
    rows: list[Row] = []
    for path in paths:
        if len(paths) == 1 and (own := _own_rows(path)) is not None:
            return own
        rows += tracker_rows(path)
    metrics, evals = split_log(rows)
    if not metrics and not evals:
        raise RunFolderError(
            f"{paths[0]} holds no metric of slime: none starts with train/, rollout/ or eval/ and has a step"
        )
    return TrackedRun(metrics, evals)


def tracker_rows(path: Path) -> list[Row]:
    """Rows by slime's names, each with its step. Raises RunFolderError."""
    kind = _kind(path)
    if kind is None:
        raise RunFolderError(f"{path}: {what_it_is(path)}. What can be read is {READABLE}")
    return list(kind(path))


def what_it_is(path: Path) -> str:
    """Return what an unreadable path seems to be, in words."""
    if not path.exists():
        return "it is not there"
    if path.is_dir():
        if any(path.rglob("*.wandb")):
            return WANDB_SAYS
        names = sorted({file.suffix or file.name for file in path.iterdir()})[:5]
        return f"it is a folder without metrics; it holds {', '.join(names) or 'nothing'}"
    if path.suffix == ".wandb":
        return WANDB_SAYS
    with open(path, "rb") as file:
        head = file.read(60)
    if not head:
        return "it is an empty file"
    return f"it is a file of an unknown kind, which starts with {head.decode('utf-8', 'replace')[:40]!r}"


def _own_rows(path: Path) -> TrackedRun | None:
    """Return the rows of a metrics.jsonl, with the eval.jsonl beside it; None where they have slime's names, or no
    step."""
    if path.suffix != ".jsonl" or not path.is_file():
        return None
    rows = read_rows(path)
    own = any("step" in row for row in rows) and not is_slime_log(rows)
    return None if not own else TrackedRun(rows, read_rows(path.with_name("eval.jsonl")))


def _kind(path: Path) -> Callable[[Path], Iterable[Row]] | None:
    """Return the function that reads the rows of `path`; None where nothing here does."""
    if path.is_dir():
        if event_files(path):
            return event_rows
        return _csv_folder if _csv_files(path) else None
    if not path.is_file():
        return None
    if is_event_file(path):
        return event_rows
    if _begins_with_object(path):
        return read_rows
    if is_exported_csv(path):
        return csv_rows
    return log_rows if holds_metrics(path) else None


def _csv_files(path: Path) -> list[Path]:
    return [file for file in sorted(path.glob("*.csv")) if is_exported_csv(file)]


def _csv_folder(path: Path) -> Iterator[Row]:
    for file in _csv_files(path):
        yield from csv_rows(file)


def _begins_with_object(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(1) == b"{"
