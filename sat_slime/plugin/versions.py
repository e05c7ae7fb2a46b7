"""Weight versions: numbered by optimizer steps, and carried from each response to the trainer.

slime numbers its pushes. With the hook `version_by_step` the number is that of the optimizer steps that the pushed
weights have had, so what comes back with a response says exactly which weights made it. A sample's versions stay in
slime's rollout process; the one number of a sample that reaches the trainer is `metadata["round_number"]`, meant for
the turns of a conversation. Versions travel there as -1 - version: negative, so that they are told from turns.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import Any

from sat_slime.config.plugin import HooksConfig

logger = logging.getLogger(__name__)

CARRIER = "round_number"


def are_steps(args: Namespace, hooks: HooksConfig) -> bool:
    """Whether the versions of this run are optimizer steps. Not with a push by disk, full or delta: folders there are
    named by version and must count up by one, and with --release-train the driver counts them."""
    return hooks.version_by_step and getattr(args, "update_weight_transport", "nccl") != "disk"


def steps_of(versions: Iterable[Any]) -> list[int]:
    """Versions as numbers. Raises ValueError for one that is none: of an engine that was never sent weights."""
    return [int(version) for version in versions]


def load(samples: Sequence[Any]) -> str | None:
    """Puts the oldest version of each of slime's samples where it reaches the trainer: all of them, or none.

    Returns:
        Why the batch carries no versions, or None.
    """
    if not samples:
        return "there are no samples"
    if any(CARRIER in (sample.metadata or {}) for sample in samples):
        return f"the samples use metadata[{CARRIER!r}] themselves"
    try:
        oldest = [min(steps_of(sample.weight_versions)) for sample in samples]
    except ValueError:
        odd = {str(version) for sample in samples for version in sample.weight_versions or ["none"]}
        return f"not every response came with the version of its weights: {', '.join(sorted(odd)[:4])}"
    for sample, version in zip(samples, oldest, strict=True):
        sample.metadata = {**(sample.metadata or {}), CARRIER: -1 - version}
    return None


def unload(rollout_data: dict[str, Any]) -> list[int] | None:
    """Takes this rank's versions out of a trainer's batch, in the order of its samples; None where it has none. A
    user's own round numbers stay, and slime logs them."""
    carried = rollout_data.get(CARRIER)
    if not carried or max(carried) >= 0:
        return None
    return [-1 - number for number in rollout_data.pop(CARRIER)]
