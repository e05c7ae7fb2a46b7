"""The calculator: what the tool writes, and which characters of an answer it wrote."""

from __future__ import annotations

import numpy as np
import pytest

from sat_slime.tasks.calculator import Calculator

TASK = Calculator()


@pytest.mark.parametrize(
    ("answer", "written"),
    [("47*38?", "86;"), ("99+01?", "00;"), ("47*38?86;86+12?", "98;"), ("47*38?86;6+12?", "--;"), ("?", "--;")],
)
def test_the_tool_reads_the_last_call(answer, written):
    assert TASK.tool(answer) == written
    assert TASK.decode(TASK.called_tool(TASK.encode(answer))) == written
    assert TASK.called_tool(TASK.encode(answer[:-1])) is None


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("47*38?86;86+12?98;98$", 1),
        ("98$", 1),
        ("47*38?86;86+12?98;98", 0),
        ("47*38?86;86+12?98;89$", 0),
        ("47*38?86;86+12?98;$", 0),
    ],
)
def test_the_last_number_is_graded(answer, reward):
    assert TASK.verdict("98", TASK.encode(answer)).reward == reward


def test_demonstrations_call_the_tool_and_are_exact_careless_or_direct():
    rng = np.random.default_rng(1)
    problems = TASK.training_problems(300, rng)
    for problem in problems:
        answer = TASK.demonstration(problem, rng, 0.0, direct=False)
        assert TASK.grade(problem.label, answer).reward == 1
        marks = TASK.written_by_tool(answer)
        assert "".join("t" if mark else "m" for mark in marks) == "mmmmmmtttmmmmmmtttmmm"
        assert (len(problem.prompt), len(answer)) == (TASK.prompt_tokens, TASK.answer_tokens)
        assert not any(TASK.written_by_tool(TASK.demonstration(problem, rng, 0.0, direct=True)))
    right = np.mean([TASK.grade(p.label, TASK.demonstration(p, rng, 0.2, False)).reward for p in problems])
    assert 0.25 < right < 0.45  # 0.8 ** 5: five numbers are copied
