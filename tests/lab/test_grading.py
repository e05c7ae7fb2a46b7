"""The running sums graded by their own check and by the verifier: the same rewards for the same responses."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from sat_slime.config.schema import VerifierConfig
from sat_slime.lab.grading import Grader
from sat_slime.lab.rollout_batch import RolloutBatch
from sat_slime.rollout.types import Response
from sat_slime.tasks import Problem
from sat_slime.tasks.running_sums import RunningSums

TASK = RunningSums()

needs_verifier = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="needs pip install '.[reward]'"
)


def response(output_ids, problem: Problem) -> Response:
    length = len(output_ids)
    versions = np.full(length, 3, np.int64)
    return Response(
        "r", TASK.encode(problem.prompt), tuple(output_ids), np.zeros(length, np.float32), None, "stop", versions
    )


def written(problem: Problem, rng: np.random.Generator) -> tuple[int, ...]:
    """A response: a demonstration, one with a slip, one in which a character is another, or noise."""
    kind = rng.integers(4)
    text = TASK.demonstration(problem, rng, error_rate=0.3 if kind == 1 else 0.0, direct=bool(rng.integers(2)))
    tokens = list(TASK.encode(text))
    if kind == 2:
        tokens[rng.integers(len(tokens))] = int(rng.integers(TASK.vocab_size))
    if kind == 3:
        tokens = [*rng.integers(0, TASK.vocab_size, rng.integers(1, 12)).tolist(), TASK.eos_id]
    return tuple(tokens)


def make_batch(problems: int = 200, samples: int = 8, seed: int = 0) -> RolloutBatch:
    rng = np.random.default_rng(seed)
    drawn = TASK.training_problems(problems, rng)
    responses = [response(written(problem, rng), problem) for problem in drawn for _ in range(samples)]
    return RolloutBatch(TASK, 0, drawn, responses)


@needs_verifier
@pytest.mark.parametrize("mode", ["strict_integer", "default", "prime_math", "math_dapo"])
def test_every_mode_of_the_verifier_gives_the_rewards_of_the_tasks_own_check(mode):
    batch = make_batch(problems=100)
    exact = Grader(VerifierConfig(), TASK).grade(batch)
    grader = Grader(VerifierConfig(mode=mode, workers=1), TASK)
    try:
        verified = grader.grade(batch)
    finally:
        grader.close()
    np.testing.assert_array_equal(verified.rewards, exact.rewards)
    assert 0.2 < exact.rewards.mean() < 0.9
    if mode != "prime_math":  # PRIME compares what is not there, too
        none = [verdict.reason == "no_answer" for verdict in exact.verdicts]
        assert none == [verdict.reason == "no_answer" for verdict in verified.verdicts] and 0 < sum(none) < len(none)


@needs_verifier
def test_what_the_verifier_counted_is_in_the_metrics_of_the_batch():
    batch = make_batch(problems=2)
    grader = Grader(VerifierConfig(mode="strict_integer", workers=1), TASK)
    try:
        metrics = grader.grade(batch).metrics()
        again = grader.grade(batch).metrics()
    finally:
        grader.close()
    assert metrics["verifier/verdicts"] == again["verifier/verdicts"] == 16
    assert metrics["verifier/correct"] == 16 * metrics["reward/mean"]
    assert metrics["verifier/timeouts"] == metrics["verifier/kills"] == 0


def test_the_own_check_starts_no_process_and_says_why():
    problem = TASK.problem([3, 5, 2, 4])
    answers = ["08,10,14$", "14$", "08,10,15$", "14", "014$", "1 4$", "$", "08,10,14"]
    batch = RolloutBatch(TASK, 0, [problem], [response(TASK.encode(text), problem) for text in answers])
    graded = Grader(VerifierConfig(), TASK).grade(batch)
    assert [verdict.reason for verdict in graded.verdicts] == ["number"] * 2 + ["different"] + ["no_answer"] * 5
    assert graded.rewards.tolist() == [[1, 1, 0, 0, 0, 0, 0, 0]]
    assert graded.verifier == {}
