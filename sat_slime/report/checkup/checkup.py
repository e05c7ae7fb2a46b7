"""The check-up itself: trackers and dumps in, what they show out; one file of a dump in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sat_slime.report.checkup.given import Given, sort_out
from sat_slime.report.checkup.rollout_facts import RolloutFacts, facts
from sat_slime.report.checkup.token_sums import TokenSums
from sat_slime.report.dumps.dump_files import Skipped, find_dumps, steps
from sat_slime.report.dumps.rollout_dump import read_samples
from sat_slime.report.dumps.step_batch import DumpFault, Layout
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.reading import RunData
from sat_slime.runs.rows import columns
from sat_slime.runs.trackers.tracked_run import read_tracked


@dataclass
class Checkup:
    """What was read of a run."""

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

    Raises:
        RunFolderError: a path is of no known kind, or nothing could be read.
    """
    given = sort_out(paths)
    found = Checkup(given, skipped=list(given.skipped))
    if given.trackers:
        on_file("trackers")
        tracked = read_tracked(given.trackers)
        found.data = RunData(columns(tracked.metrics), columns(tracked.evals))
    dumps, unread = find_dumps(given.training)
    found.skipped += unread
    for step in steps(dumps, Layout(), token_ids=True):
        if isinstance(step, Skipped):
            found.skipped.append(step)
            continue
        on_file(step.name)
        found.tokens.add(step)
        del step  # it must not be in memory together with the next one
    for path in given.rollouts:
        on_file(path.name)
        try:
            found.rollouts.append(facts(*read_samples(path, reward_key)))
        except DumpFault as fault:
            found.skipped.append(Skipped(path, str(fault)))
    if not found.data.metrics and not found.data.evals and not found.tokens.steps and not found.rollouts:
        reasons = "; ".join(f"{one.path}: {one.reason}" for one in found.skipped[:3])
        raise RunFolderError(f"nothing could be read: {reasons or 'no dump of a training rollout was given'}")
    found.rollouts.sort(key=lambda one: one.rollout)
    return found
