"""The reward of running sums in slime: --custom-rm-path sat_slime.plugin.task_reward.reward."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from sat_slime.tasks.running_sums import RunningSums


async def reward(args: Namespace, sample: Any, **kwargs: Any) -> Any:
    """Return 1.0 or 0.0, the same as in the lab runtime; a list of them for a list of samples, which slime sends with
    --group-rm. The task's settings are in `metadata.task` of the sample's row of the prompts' file, as `sat-slime
    prepare laptop` writes them; without them it has its defaults. Raises ValueError where they are none."""
    return [_reward(item) for item in sample] if isinstance(sample, list) else _reward(sample)


def _reward(sample: Any) -> float:
    settings = (getattr(sample, "metadata", None) or {}).get("task") or {}
    try:
        task = RunningSums.model_validate(settings)
    except ValueError as error:
        raise ValueError(
            f"metadata.task of a prompt is {json.dumps(settings, sort_keys=True)}, which are no settings of running "
            "sums: make the prompts again with sat-slime prepare laptop --overwrite"
        ) from error
    return task.verdict(sample.label, sample.tokens[len(sample.tokens) - sample.response_length :]).reward
