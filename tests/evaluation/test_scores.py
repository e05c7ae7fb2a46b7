"""Accuracy and its intervals: by hand, and by simulation of the coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sat_slime.evaluation.scores import (
    interval_over_problems,
    interval_over_samples,
    measured_weights,
    summary,
)


def test_the_numbers_of_a_small_evaluation_by_hand():
    rewards = np.array([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], float)
    row = summary(
        rewards,
        lengths=np.array([[4, 4, 8, 4]] * 3),
        truncated=np.array([[False, False, True, False]] * 3),
        reasons=["number", "number", "no_answer", "text"] + ["different"] * 4 + ["number"] + ["timeout"] * 3,
        repeats=2,
    )
    assert row["accuracy"] == pytest.approx(1 / 3)
    assert row["accuracy_by_problem"] == [0.75, 0.0, 0.25]
    assert row["accuracy_by_run"] == pytest.approx([3 / 6, 1 / 6])  # the first two samples of each, and the other two
    assert (row["n_problems"], row["n_samples"], row["length_mean"], row["truncated"]) == (3, 12, 5.0, 0.25)
    assert {key: value for key, value in row.items() if key.startswith("reasons/")} == {
        "reasons/different": 4,
        "reasons/no_answer": 1,
        "reasons/number": 3,
        "reasons/text": 1,
        "reasons/timeout": 3,
    }


def draw(rng: np.random.Generator, rates: np.ndarray, samples: int) -> np.ndarray:
    return (rng.random((len(rates), samples)) < rates[:, None]).astype(float)


@pytest.mark.parametrize(
    ("problems", "samples", "a", "b"),
    [
        (30, 16, 0.4, 0.8),  # AIME24: a third right, most problems easy or hopeless
        (30, 16, 0.1, 2.0),  # an untrained model: 5 %
        (64, 4, 8.0, 12.0),  # the lab task: problems of nearly one difficulty
        (10, 8, 1.0, 1.0),
    ],
)
def test_intervals_cover_what_they_claim_to(problems, samples, a, b):
    """The interval over problems covers the mean of all problems, the one over samples that of the problems drawn."""
    rng = np.random.default_rng(2)
    trials, over_problems, over_samples = 1500, 0, 0
    for _ in range(trials):
        rates = rng.beta(a, b, problems)
        rewards = draw(rng, rates, samples)
        low, high = interval_over_problems(rewards.mean(1), samples)
        over_problems += low <= a / (a + b) <= high
        low, high = interval_over_samples(rewards)
        over_samples += low <= rates.mean() <= high
    # Near 95 % where problems are much alike; above it for few problems of very different rates.
    for covered in (over_problems, over_samples):
        assert 0.935 <= covered / trials <= 0.995


def test_the_choice_of_problems_adds_to_the_sampling():
    rewards = draw(np.random.default_rng(3), np.array([0.02, 0.98] * 15), 16)
    row = summary(rewards)
    assert row["accuracy/high"] - row["accuracy/low"] > 5 * (row["accuracy/high_samples"] - row["accuracy/low_samples"])
    assert row["accuracy/low"] < row["accuracy/low_samples"] < row["accuracy"] < row["accuracy/high_samples"]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_nothing_right_or_nothing_wrong_still_has_an_interval(value):
    row = summary(np.full((30, 16), value))
    width = {name: row[f"accuracy/high{name}"] - row[f"accuracy/low{name}"] for name in ("", "_samples")}
    assert width[""] == pytest.approx(3 / 30, abs=0.03)  # the rule of three, over the problems
    assert width["_samples"] == pytest.approx(3 / 480, abs=0.003)  # and over the samples
    assert row["accuracy"] in (row["accuracy/low"], row["accuracy/high"])


@pytest.mark.parametrize(("problems", "t"), [(2, 12.7062), (3, 4.3027), (31, 2.0423)])
def test_the_interval_over_problems_is_students(problems, t):
    values = np.arange(problems, dtype=float)
    low, high = interval_over_problems(values, 4, binary=False)
    assert (high - low) / 2 == pytest.approx(t * values.std(ddof=1) / math.sqrt(problems), rel=1e-4)


def test_rewards_that_are_not_right_or_wrong_have_plain_intervals():
    row = summary(np.array([[0.5, 1.5], [2.0, -1.0], [0.0, 0.0]]))
    assert row["accuracy"] == pytest.approx(0.5) and row["accuracy/low"] < 0 < row["accuracy/high"]


def test_one_problem_has_no_interval_over_problems():
    row = summary(np.array([[1.0, 0.0]]))
    assert "accuracy/low" not in row and row["accuracy/low_samples"] < 0.5
    row = summary(np.array([[1.0], [0.0]]))
    assert row["accuracy/low_samples"] < 0.5 < row["accuracy/high_samples"]


def test_nothing_measured_and_uneven_repeats_are_errors():
    with pytest.raises(ValueError, match="at least one problem"):
        summary(np.zeros((0, 4)))
    with pytest.raises(ValueError, match="4 samples a problem are not 3 evaluations"):
        summary(np.zeros((2, 4)), repeats=3)


def test_weights_are_named_only_if_all_responses_are_theirs():
    assert measured_weights([8, 8, 8]) == 8
    assert measured_weights([8, 16]) is None
    assert measured_weights([8, None]) is None
    assert measured_weights([]) is None
