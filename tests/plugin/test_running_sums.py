"""The reward of the running sums in slime is the embedded task's verdict."""

import asyncio
from types import SimpleNamespace

import pytest

from sat_slime.plugin.running_sums import reward
from sat_slime.tasks.running_sums import RunningSums

TASK = RunningSums()
PROMPT = TASK.encode("3524    =")


def sample(answer, label="14"):
    ids = TASK.encode(answer)
    return SimpleNamespace(tokens=[*PROMPT, *ids], response_length=len(ids), label=label)


@pytest.mark.parametrize(
    "answer, right",
    [("08,10,14$", 1.0), ("14$", 1.0), ("08,10,13$", 0.0), ("08,10,14", 0.0), ("114$", 0.0), ("", 0.0), ("14,$", 0.0)],
)
def test_as_the_embedded_task(answer, right):
    assert asyncio.run(reward(None, sample(answer))) == right == TASK.verdict("14", TASK.encode(answer)).reward


def test_a_group_has_a_list():
    group = [sample("14$"), sample("15$")]
    assert asyncio.run(reward(None, group)) == [1.0, 0.0]
