"""Accuracy and its intervals: by hand, and by simulation of the coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sat_slime.evaluation.scores import interval_over_samples, summary


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
    rng = np.random.default_rng(2)
    trials, covered = 1500, 0
    for _ in range(trials):
        rates = rng.beta(a, b, problems)
        low, high = interval_over_samples((rng.random((problems, samples)) < rates[:, None]).astype(float))
        covered += low <= rates.mean() <= high
    # Near 95 % where problems are much alike; above it for few problems of very different rates.
    assert 0.935 <= covered / trials <= 0.995


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_nothing_right_or_nothing_wrong_still_has_an_interval(value):
    row = summary(np.full((30, 16), value))
    low, high = row["accuracy/low_samples"], row["accuracy/high_samples"]
    assert high - low == pytest.approx(3 / 480, abs=0.003)  # the rule of three
    assert row["accuracy"] in (low, high)


def test_rewards_that_are_not_right_or_wrong_have_plain_intervals():
    row = summary(np.array([[0.5, 1.5], [2.0, -1.0], [0.0, 0.0]]))
    half = 1.959964 * math.sqrt((0.5 + 4.5 + 0) / (2 * 3**2))  # by the variances of the problems
    assert [row[f"accuracy/{end}_samples"] for end in ("low", "high")] == pytest.approx([0.5 - half, 0.5 + half])
    assert "accuracy/low_samples" not in summary(np.array([[0.5], [2.0]])), "one sample a problem"


def test_nothing_measured_is_an_error():
    with pytest.raises(ValueError, match="at least one problem"):
        summary(np.zeros((0, 4)))
