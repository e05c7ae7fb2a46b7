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
    """What a dump tells of one rollout. Shares are of its samples; NaN where the dump does not tell."""

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
    """The largest such number."""
    newest: int | None
    """The newest version of the weights that wrote any of it."""
    mixed: float
    """Samples that more than one version of the weights wrote."""
    log_probs: bool
    """Whether the engine's log-probs are there."""


def facts(rollout: int, samples: Sequence[Sampled]) -> RolloutFacts:
    """What the samples of one rollout are."""
    newest = max((max(one.versions) for one in samples if one.versions), default=None)
    ages = [newest - min(one.versions) for one in samples if one.versions] if newest is not None else []
    by_prompt: dict[int, list[Sampled]] = {}
    for one in samples:
        if one.group is not None:
            by_prompt.setdefault(one.group, []).append(one)
    groups = [group for group in by_prompt.values() if len(group) > 1]
    rewarded = [group for group in groups if all(one.reward is not None for one in group)]
    doubled = sum(
        times for group in groups for times in Counter(one.fingerprint for one in group).values() if times > 1
    )
    return RolloutFacts(
        rollout=rollout,
        samples=len(samples),
        reward=_mean([one.reward for one in samples if one.reward is not None]),
        equal_groups=_mean([len({one.reward for one in group}) == 1 for group in rewarded]),
        length=_mean([one.length for one in samples]),
        truncated=_mean([one.status == "truncated" for one in samples]),
        aborted=_mean([one.status in ("aborted", "failed") for one in samples]),
        doubled=doubled / len(samples) if groups else np.nan,
        removed=_mean([one.removed for one in samples]),
        spread=_mean(ages),
        oldest=float(max(ages)) if ages else np.nan,
        newest=newest,
        mixed=_mean([len(set(one.versions)) > 1 for one in samples]) if ages else np.nan,
        log_probs=any(one.log_probs for one in samples),
    )


def longest_version(rollouts: Sequence[RolloutFacts]) -> int:
    """How many rollouts in a row have one newest version, at most; 0 where none has a version. Rollout 0 does not
    count: it is trained with the weights that wrote it. rollouts: by number."""
    longest = run = 0
    for before, one in pairwise([None, *(one for one in rollouts if one.rollout > 0)]):
        assert one is not None
        follows = before is not None and one.rollout == before.rollout + 1 and one.newest == before.newest
        run = 0 if one.newest is None else run + 1 if follows else 1
        longest = max(longest, run)
    return longest


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else np.nan
