"""The reward of a task of ours, or of your own, in slime: --custom-rm-path sat_slime.plugin.task_reward.reward."""

from __future__ import annotations

import functools
import json
from argparse import Namespace
from typing import Any

from sat_slime.config.schema import LabConfig
from sat_slime.tasks import Task


async def reward(args: Namespace, sample: Any, **kwargs: Any) -> Any:
    """1.0 or 0.0, or what else the task's own grading gives, the same as in the lab runtime; a list of them for a
    list of samples, which slime sends with --group-rm.

    The task is the one that the sample's row of the prompts' file has in `metadata.task`, with its settings, as
    `sat-slime prepare laptop` writes it; without that it is running sums.

    Raises:
        ValueError: there is no such task here, or it has no such settings.
    """
    return [_reward(item) for item in sample] if isinstance(sample, list) else _reward(sample)


def _reward(sample: Any) -> float:
    settings = (getattr(sample, "metadata", None) or {}).get("task") or {}
    task = _task(json.dumps(settings, sort_keys=True))
    return task.verdict(sample.label, sample.tokens[len(sample.tokens) - sample.response_length :]).reward


@functools.lru_cache(maxsize=64)
def _task(settings: str) -> Task:
    return LabConfig(task=json.loads(settings)).task
