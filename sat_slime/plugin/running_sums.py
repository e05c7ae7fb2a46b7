"""The reward of the running sums in slime: --custom-rm-path sat_slime.plugin.running_sums.reward."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from sat_slime.reward.running_sum_answers import verdict


async def reward(args: Namespace, sample: Any, **kwargs: Any) -> Any:
    """1.0 or 0.0, the same as the embedded runtime's `task.verdict`; a list of them for a list of samples, which slime
    sends with --group-rm."""
    if isinstance(sample, list):
        return [_reward(one) for one in sample]
    return _reward(sample)


def _reward(sample: Any) -> float:
    return verdict(sample.label, sample.tokens[len(sample.tokens) - sample.response_length :]).reward
