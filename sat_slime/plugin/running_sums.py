"""The reward of the running sums in slime: --custom-rm-path sat_slime.plugin.running_sums.reward."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from sat_slime.tasks.running_sums import RunningSums

TASK = RunningSums()


async def reward(args: Namespace, sample: Any, **kwargs: Any) -> Any:
    """1.0 or 0.0, the same as of the embedded runtime; a list of them for a list of samples, which slime sends with
    --group-rm."""
    if isinstance(sample, list):
        return [_reward(item) for item in sample]
    return _reward(sample)


def _reward(sample: Any) -> float:
    return TASK.verdict(sample.label, sample.tokens[len(sample.tokens) - sample.response_length :]).reward
