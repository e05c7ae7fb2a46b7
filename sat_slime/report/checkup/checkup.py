"""Reads what there is of one run of slime: trackers, dumps of training, dumps of rollouts; one file of a dump in memory
at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sat_slime.report.checkup.rollout_facts import RolloutFacts, facts
from sat_slime.report.checkup.token_sums import TokenSums
from sat_slime.report.dumps.dump_files import Skipped, by_number, find_dumps, steps
from sat_slime.report.dumps.rollout_dump import is_evaluation, read_samples
from sat_slime.report.dumps.step_batch import DumpFault, Layout
from sat_slime.report.dumps.straw_archive import SUFFIX
from sat_slime.report.dumps.train_dump import is_rollout_dump
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.reading import RunData
from sat_slime.runs.trackers.tracked_run import READABLE, is_tracker, read_tracked, what_it_is

DUMPS = f"slime's dumps of training and of rollouts (.pt, {SUFFIX}), or the folder of --dump-details"


@dataclass
class Given:
    """The files of one run, sorted by what they are."""

    trackers: list[Path] = field(default_factory=list)
    training: list[Path] = field(default_factory=list)
    """Files of --save-debug-train-data."""
    rollouts: list[Path] = field(default_factory=list)
    """Files of --save-debug-rollout-data."""
    evaluations: list[Path] = field(default_factory=list)
    """Rollout dumps of evaluations, which are passed over."""
    skipped: list[Skipped] = field(default_factory=list)


@dataclass
class Checkup:
    """The parts of a run that a checkup reads."""

    given: Given
    data: RunData = field(default_factory=RunData)
    """Empty without a tracker."""
    tokens: TokenSums = field(default_factory=TokenSums)
    rollouts: list[RolloutFacts] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    """Dumps that could not be read, and why."""


def check(
    paths: Sequence[Path], reward_key: str | None = None, on_file: Callable[[str], object] = lambda name: None
) -> Checkup:
    """Read all that was given of one run.

    Args:
        reward_key: slime's --reward-key, for rewards that are dicts.
        on_file: is called with the name of each file or step before it is read.

    Raises:
        RunFolderError: a path is of no known kind, or nothing could be read.
    """
    given = sort_out(paths)
    checkup = Checkup(given, skipped=list(given.skipped))
    if given.trackers:
        on_file("trackers")
        checkup.data = read_tracked(given.trackers).data()
    dumps, unread = find_dumps(given.training)
    checkup.skipped += unread
    for step in steps(dumps, Layout(), token_ids=True):
        if isinstance(step, Skipped):
            checkup.skipped.append(step)
            continue
        on_file(step.name)
        checkup.tokens.add(step)
        del step  # it must not be in memory together with the next one
    for path in given.rollouts:
        on_file(path.name)
        try:
            checkup.rollouts.append(facts(*read_samples(path, reward_key)))
        except DumpFault as fault:
            checkup.skipped.append(Skipped(path, str(fault)))
    if not checkup.data.metrics and not checkup.data.evals and not checkup.tokens.steps and not checkup.rollouts:
        reasons = "; ".join(map(str, checkup.skipped[:3]))
        raise RunFolderError(f"nothing could be read: {reasons or 'no dump of a training rollout was given'}")
    checkup.rollouts.sort(key=lambda facts: facts.rollout)
    return checkup


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
    files = [file for part in parts or [path] if part.is_dir() for file in part.iterdir() if _is_dump(file)]
    return sorted(files, key=lambda file: (str(file.parent), by_number(file)))


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
