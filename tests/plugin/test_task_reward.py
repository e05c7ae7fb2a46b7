"""The reward of a task in slime is the lab task's verdict."""

import asyncio
from argparse import Namespace
from types import SimpleNamespace

import pytest

from sat_slime.plugin.task_reward import reward
from sat_slime.tasks.running_sums import RunningSums

TASK = RunningSums()
ARGS = Namespace()
PROMPT = TASK.encode("3524    =")


def sample(answer, label="14"):
    ids = TASK.encode(answer)
    return SimpleNamespace(tokens=[*PROMPT, *ids], response_length=len(ids), label=label)


@pytest.mark.parametrize(
    "answer, right",
    [("08,10,14$", 1.0), ("14$", 1.0), ("08,10,13$", 0.0), ("08,10,14", 0.0), ("114$", 0.0), ("", 0.0), ("14,$", 0.0)],
)
def test_as_the_lab_task(answer, right):
    assert asyncio.run(reward(ARGS, sample(answer))) == right == TASK.verdict("14", TASK.encode(answer)).reward


def test_a_group_has_a_list():
    group = [sample("14$"), sample("15$")]
    assert asyncio.run(reward(ARGS, group)) == [1.0, 0.0]


def test_the_settings_are_those_of_the_row():
    task = RunningSums(max_digits=5)
    metadata = {"task": task.model_dump()}
    for answer in ("08,10,14$", "15$", "14"):
        ids = task.encode(answer)
        tokens = [*task.encode("3524 ="), *ids]
        given = SimpleNamespace(tokens=tokens, response_length=len(ids), label="14", metadata=metadata)
        assert asyncio.run(reward(ARGS, given)) == task.verdict("14", ids).reward == (answer == "08,10,14$")


def test_settings_that_are_not_there_are_named():
    given = SimpleNamespace(tokens=[1], response_length=1, label="1", metadata={"task": {"length": 6}})
    with pytest.raises(ValueError, match=r"length\n  Extra inputs are not permitted"):
        asyncio.run(reward(ARGS, given))
