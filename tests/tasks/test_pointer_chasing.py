"""Pointer chasing: the table is followed, and one wrong token fails."""

from __future__ import annotations

import numpy as np
import pytest

from sat_slime.config import LabConfig, config_errors
from sat_slime.tasks.pointer_chasing import PointerChasing

TASK = PointerChasing(nodes=4, hops=3)
PROMPT, CHAIN = "ac bd ca db a=", "cac"


@pytest.mark.parametrize(
    ("answer", "reward"), [("cac$", 1), ("cac", 0), ("cab$", 0), ("aac$", 0), ("c$", 0), ("cacc$", 0), ("cac$$", 0)]
)
def test_one_wrong_token_fails(answer, reward):
    assert TASK.verdict(CHAIN, TASK.encode(answer)).reward == reward


def test_labels_follow_the_table_and_fit_the_lengths():
    for problem in TASK.training_problems(100, np.random.default_rng(0)):
        node, table = problem.prompt[-2], {pair[0]: pair[1] for pair in problem.prompt[:-2].split()}
        for expected in problem.label:
            node = table[node]
            assert node == expected
        assert (len(problem.prompt), len(problem.label) + 1) == (TASK.prompt_tokens, TASK.answer_tokens)


def test_demonstrations_are_exact_careless_or_direct():
    rng = np.random.default_rng(1)
    problems = TASK.training_problems(300, rng)
    assert all(TASK.demonstration(p, rng, 0.0, direct=False) == p.label + "$" for p in problems)
    assert all(TASK.demonstration(p, rng, 0.0, direct=True) == p.label[-1] + "$" for p in problems)
    right = np.mean([TASK.grade(p.label, TASK.demonstration(p, rng, 0.3, False)).reward for p in problems])
    assert 0.3 < right < 0.65  # 0.7 ** 3, and a slip may meet the right node


def test_the_quick_start_takes_it_as_far_as_lengths_allow():
    config = LabConfig(task={"name": "pointer_chasing"})
    assert config_errors(config) == []
    long = LabConfig(task={"name": "pointer_chasing", "hops": 30})
    (error,) = config_errors(long)
    assert "raise it to 31, or lower one of task.nodes 6, task.hops 30" in error
