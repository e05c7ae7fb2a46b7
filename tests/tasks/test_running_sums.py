"""Running sums: grading, what is held out, demonstrations."""

from __future__ import annotations

import numpy as np
import pytest

from sat_slime.tasks.running_sums import RunningSums

TASK = RunningSums()
PROBLEM = TASK.problem([3, 5, 2, 4])


def test_prompt_and_answer_are_the_documented_ones():
    assert PROBLEM.prompt == "3524    ="
    assert TASK.demonstration(PROBLEM, np.random.default_rng(0), 0.0, direct=False) == "08,10,14$"
    assert TASK.demonstration(PROBLEM, np.random.default_rng(0), 0.0, direct=True) == "14$"


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("08,10,14$", 1), ("14$", 1), ("99,99,14$", 1),  # only the last number is asked for
        ("08,10,14", 0), ("", 0), ("08,10,15$", 0), ("014$", 0),  # two do not end, two are of other numbers
        ("14,$", 0), ("08=14$", 0), ("08 14$", 0), ("14 $", 0), ("$", 0), ("14$$", 0),
    ],
)  # fmt: skip
def test_reward(answer, reward):
    assert TASK.verdict(PROBLEM.label, TASK.encode(answer)).reward == reward


def test_tokens_beyond_the_alphabet_are_no_answer():
    assert TASK.decode([1, 15, 12]) == "1?$"
    assert TASK.verdict(PROBLEM.label, [1, 15, 12]).reward == 0


def test_held_out_problems_are_never_trained_on():
    task = RunningSums(min_digits=2, max_digits=3, max_digit=3)  # 80 problems: all of them are drawn
    rng = np.random.default_rng(0)
    train = set(task.training_problems(4000, rng))
    held_out = {task.draw_problem(rng, held_out=True) for _ in range(400)}
    assert held_out and not train & held_out
    assert len(train | held_out) == 4**2 + 4**3


def test_evaluation_problems_are_all_different_and_of_all_lengths():
    problems = TASK.evaluation_problems(64, np.random.default_rng(0))
    assert len(set(problems)) == 64 and all(map(TASK.is_held_out, problems))
    assert {len(p.prompt[:-1].rstrip()) for p in problems} == {3, 4, 5, 6, 7, 8}


def test_careless_demonstrations_err_and_carry_the_error_on():
    rng = np.random.default_rng(1)
    answers = [TASK.demonstration(PROBLEM, rng, 0.3, direct=False) for _ in range(400)]
    right = np.mean([TASK.verdict(PROBLEM.label, TASK.encode(a)).reward for a in answers])
    assert 0.25 < right < 0.5  # about 0.7 ** 3, and some errors cancel
