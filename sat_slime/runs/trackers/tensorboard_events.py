"""Scalars of slime's `--use-tensorboard`, as rows by slime's names.

slime's processes write files of their own, into one folder or, without `--tb-experiment-name`, into folders named by
the second in which each began, so that a folder is read with all below it. slime leaves its step key out of the tags
and gives it as the step of the event: of `train/*` it is `train/step`, of `eval/*` `eval/step`, of all others
`rollout/step`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.slime_rows import Row


def is_event_file(path: Path) -> bool:
    """Return whether a file is named as TensorBoard's writers name theirs."""
    return "tfevents" in path.name


def event_files(folder: Path) -> list[Path]:
    """Return the event files in a folder and below it."""
    return sorted(file for file in folder.rglob("*tfevents*") if file.is_file())


def event_rows(path: Path) -> Iterator[Row]:
    """Yield the scalars of a file, or of all files of a folder, in the order of their times. Raises RunFolderError
    where the package tensorboard is missing."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError as error:
        raise RunFolderError(
            f"{path} holds TensorBoard events, and the package tensorboard that reads them is not installed: "
            "pip install tensorboard"
        ) from error
    dated: list[tuple[float, Row]] = []
    for file in [path] if path.is_file() else event_files(path):
        for event in LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    row = {value.tag: value.simple_value, step_key(value.tag): event.step}
                    dated.append((event.wall_time, row))
    dated.sort(key=lambda dated_row: dated_row[0])
    for _, row in dated:
        yield row


def step_key(metric: str) -> str:
    """Return slime's key of the step that counts a metric of its own."""
    part = metric.partition("/")[0]
    return f"{part}/step" if part in ("train", "eval") else "rollout/step"
