"""The reward of a task in slime is the lab task's verdict."""

import asyncio
from argparse import Namespace
from types import SimpleNamespace

import pytest

from sat_slime.plugin.task_reward import reward
from sat_slime.tasks.running_sums import RunningSums

TASK = RunningSums()


def rewarded(answer: str, task: RunningSums = TASK, metadata=None) -> float:
    ids = task.encode(answer)
    tokens = [*task.encode("3524    ="), *ids]
    sample = SimpleNamespace(tokens=tokens, response_length=len(ids), label="14", metadata=metadata)
    one = asyncio.run(reward(Namespace(), sample))
    assert asyncio.run(reward(Namespace(), [sample, sample])) == [one, one] == [task.verdict("14", ids).reward] * 2
    return one


@pytest.mark.parametrize(
    "answer, right",
    [("08,10,14$", 1.0), ("14$", 1.0), ("08,10,13$", 0.0), ("08,10,14", 0.0), ("114$", 0.0), ("", 0.0), ("14,$", 0.0)],
)
def test_as_the_lab_task_with_the_settings_of_the_row(answer, right):
    assert rewarded(answer) == right
    task = RunningSums(max_digits=5)
    assert rewarded(answer, task, {"task": task.model_dump()}) == right


def test_settings_that_are_not_there_are_named():
    with pytest.raises(ValueError, match=r"metadata.task of a prompt is .*length.*: make the prompts again"):
        rewarded("14$", metadata={"task": {"length": 6}})
