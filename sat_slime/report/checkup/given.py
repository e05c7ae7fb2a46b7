"""What a person has of a run, sorted by what it is: trackers, dumps of training, dumps of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sat_slime.report.dumps.dump_files import Skipped, by_number
from sat_slime.report.dumps.rollout_dump import is_evaluation
from sat_slime.report.dumps.step_batch import DumpFault
from sat_slime.report.dumps.straw_archive import SUFFIX
from sat_slime.report.dumps.train_dump import is_rollout_dump
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.trackers.tracked_run import READABLE, is_tracker, what_it_is

DUMPS = f"slime's dumps of training and of rollouts (.pt, {SUFFIX}), or the folder of --dump-details"


@dataclass
class Given:
    """The files of one run."""

    trackers: list[Path] = field(default_factory=list)
    training: list[Path] = field(default_factory=list)
    """Files of --save-debug-train-data."""
    rollouts: list[Path] = field(default_factory=list)
    """Files of --save-debug-rollout-data."""
    evaluations: list[Path] = field(default_factory=list)
    """Rollout dumps of evaluations, which are passed over."""
    skipped: list[Skipped] = field(default_factory=list)


def sort_out(paths: Sequence[Path]) -> Given:
    """Tell trackers from dumps. Raises RunFolderError for a path that is neither, with what was seen and what can be
    read."""
    given = Given()
    for path in paths:
        files = _dump_files(path)
        for file in files:
            _sort_dump(given, file)
        if path not in files and is_tracker(path):
            given.trackers.append(path)
        elif not files:
            raise RunFolderError(f"{path}: {what_it_is(path)}. What can be read is {READABLE}; and {DUMPS}")
    return given


def _dump_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if _is_dump(path) else []
    parts = [part for name in ("train_data", "rollout_data") if (part := path / name).is_dir()]  # of --dump-details
    found = [file for part in parts or [path] if part.is_dir() for file in part.iterdir() if _is_dump(file)]
    return sorted(found, key=lambda file: (str(file.parent), by_number(file)))


def _is_dump(file: Path) -> bool:
    return file.suffix == ".pt" or file.name.endswith(SUFFIX)


def _sort_dump(given: Given, file: Path) -> None:
    try:
        if not file.name.endswith(SUFFIX) and not is_rollout_dump(file):
            given.training.append(file)
        elif is_evaluation(file):
            given.evaluations.append(file)
        else:
            given.rollouts.append(file)
    except DumpFault as fault:
        given.skipped.append(Skipped(file, str(fault)))
