"""Sums over the samples of rollout dumps: rewards, groups without a signal, cut and doubled responses, staleness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sat_slime.report.dumps.rollout_dump import Sampled


@dataclass(frozen=True)
class RolloutFacts:
    """The numbers of one dumped rollout. Shares are of its samples; NaN where the dump does not tell."""

    rollout: int
    samples: int
    reward: float
    """Mean."""
    equal_groups: float
    """Share of the prompts whose responses all have one reward: a group-normalized advantage is 0 there."""
    length: float
    """Mean tokens of a response."""
    truncated: float
    aborted: float
    """Aborted or failed."""
    doubled: float
    """Responses that another one of the same prompt equals, token for token."""
    removed: float
    spread: float
    """Mean number of weight updates between a sample's oldest weights and the newest of the whole rollout. The trainer
    may be ahead of those too, which the dump does not tell."""
    oldest: float
    """The largest such number of updates."""
    newest: int | None
    """The newest version of the weights that wrote any of it."""
    mixed: float
    """Samples that more than one version of the weights wrote."""
    log_probs: bool
    """Whether the engine's log-probs are there."""


def facts(rollout: int, samples: Sequence[Sampled]) -> RolloutFacts:
    """Sum up the samples of one rollout."""
    newest = max((max(sample.versions) for sample in samples if sample.versions), default=None)
    ages = [newest - min(sample.versions) for sample in samples if sample.versions] if newest is not None else []
    by_prompt: dict[int, list[Sampled]] = {}
    for sample in samples:
        if sample.group is not None:
            by_prompt.setdefault(sample.group, []).append(sample)
    groups = [group for group in by_prompt.values() if len(group) > 1]
    rewarded = [group for group in groups if all(sample.reward is not None for sample in group)]
    doubled = sum(
        times for group in groups for times in Counter(sample.fingerprint for sample in group).values() if times > 1
    )
    return RolloutFacts(
        rollout=rollout,
        samples=len(samples),
        reward=_mean([sample.reward for sample in samples if sample.reward is not None]),
        equal_groups=_mean([len({sample.reward for sample in group}) == 1 for group in rewarded]),
        length=_mean([sample.length for sample in samples]),
        truncated=_mean([sample.status == "truncated" for sample in samples]),
        aborted=_mean([sample.status in ("aborted", "failed") for sample in samples]),
        doubled=doubled / len(samples) if groups else np.nan,
        removed=_mean([sample.removed for sample in samples]),
        spread=_mean(ages),
        oldest=float(max(ages)) if ages else np.nan,
        newest=newest,
        mixed=_mean([len(set(sample.versions)) > 1 for sample in samples]) if ages else np.nan,
        log_probs=any(sample.log_probs for sample in samples),
    )


def longest_version(rollouts: Sequence[RolloutFacts]) -> int:
    """Return how many rollouts in a row have the same newest version, at most; 0 where none has a version. Rollout 0
    does not count: it is trained with the weights that wrote it. rollouts: in order of their numbers."""
    longest = run = 0
    for before, rollout in pairwise([None, *(rollout for rollout in rollouts if rollout.rollout > 0)]):
        assert rollout is not None
        follows = before is not None and rollout.rollout == before.rollout + 1 and rollout.newest == before.newest
        run = 0 if rollout.newest is None else run + 1 if follows else 1
        longest = max(longest, run)
    return longest


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else np.nan
