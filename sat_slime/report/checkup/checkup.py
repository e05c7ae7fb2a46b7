"""Reads what there is of one run of slime: its trackers and its dumps of training, one file of a dump in memory at a
time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sat_slime.report.checkup.token_sums import TokenSums
from sat_slime.report.dumps.dump_files import Skipped, by_number, find_dumps, steps
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.reading import RunData
from sat_slime.runs.trackers.tracked_run import READABLE, is_tracker, read_tracked, what_it_is

DUMPS = "slime's dumps of training (.pt), or the folder of --dump-details"


@dataclass
class Checkup:
    """The parts of a run that a checkup reads."""

    trackers: list[Path]
    training: list[Path]
    """Files of --save-debug-train-data."""
    data: RunData = field(default_factory=RunData)
    """Empty without a tracker."""
    tokens: TokenSums = field(default_factory=TokenSums)
    skipped: list[Skipped] = field(default_factory=list)
    """Dumps that could not be read, and why."""


def check(paths: Sequence[Path], on_file: Callable[[str], object] = lambda name: None) -> Checkup:
    """Read all that was given of one run.

    Args:
        on_file: is called with the name of each file or step before it is read.

    Raises:
        RunFolderError: a path is of no known kind, or nothing could be read.
    """
    checkup = sort_out(paths)
    if checkup.trackers:
        on_file("trackers")
        checkup.data = read_tracked(checkup.trackers).data()
    dumps, checkup.skipped = find_dumps(checkup.training)
    for step in steps(dumps, token_ids=True):
        if isinstance(step, Skipped):
            checkup.skipped.append(step)
            continue
        on_file(step.name)
        checkup.tokens.add(step)
        del step  # it must not be in memory together with the next one
    if not checkup.data.metrics and not checkup.data.evals and not checkup.tokens.steps:
        reasons = "; ".join(map(str, checkup.skipped[:3]))
        raise RunFolderError(f"nothing could be read: {reasons or 'no dump of training was given'}")
    return checkup


def sort_out(paths: Sequence[Path]) -> Checkup:
    """Tell trackers from dumps. Raises RunFolderError for a path that is neither, with what was seen and what can be
    read."""
    checkup = Checkup([], [])
    for path in paths:
        files = _dump_files(path)
        checkup.training += files
        if path not in files and is_tracker(path):
            checkup.trackers.append(path)
        elif not files:
            raise RunFolderError(f"{path}: {what_it_is(path)}. What can be read is {READABLE}; and {DUMPS}")
    return checkup


def _dump_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".pt" else []
    folder = path / "train_data" if (path / "train_data").is_dir() else path  # of --dump-details
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted((file for file in files if file.suffix == ".pt"), key=by_number)
