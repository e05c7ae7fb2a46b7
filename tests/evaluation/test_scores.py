"""avg@k, pass@k and their intervals: by counting all subsets, and by simulation of the coverage."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sat_slime.evaluation.scores import (
    interval_over_problems,
    interval_over_samples,
    measured_weights,
    pass_at_k,
    summary,
)


@pytest.mark.parametrize("right", range(7))
@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_pass_at_k_is_the_share_of_the_subsets_that_hold_a_right_response(right, k):
    responses = [1] * right + [0] * (6 - right)
    subsets = list(itertools.combinations(responses, k))
    expected = sum(max(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(np.array([right]), 6, k)[0] == pytest.approx(expected, abs=1e-15)


def test_pass_at_k_is_unbiased():
    rng = np.random.default_rng(0)
    rate, n, k = 0.15, 16, 8
    estimates = pass_at_k(rng.binomial(n, rate, 20_000), n, k)
    assert estimates.mean() == pytest.approx(1 - (1 - rate) ** k, abs=4 * estimates.std() / math.sqrt(20_000))


@pytest.mark.parametrize("k", [0, 17])
def test_a_k_that_the_samples_do_not_give_is_an_error(k):
    with pytest.raises(ValueError, match=f"k is {k}, and a problem has 16 samples"):
        pass_at_k(np.array([3]), 16, k)
    with pytest.raises(ValueError, match=f"k is {k}, and a problem has 16 samples"):
        summary(np.zeros((2, 16)), k=[k])


def test_the_numbers_of_a_small_evaluation_by_hand():
    rewards = np.array([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], float)
    row = summary(
        rewards,
        lengths=np.array([[4, 4, 8, 4]] * 3),
        truncated=np.array([[False, False, True, False]] * 3),
        reasons=["number", "number", "no_answer", "text"] + ["different"] * 4 + ["number"] + ["timeout"] * 3,
        k=[1, 2, 4],
        repeats=2,
    )
    assert row["accuracy"] == row["avg@1"] == row["avg@4"] == row["pass@1"] == pytest.approx(1 / 3)
    assert row["accuracy_by_problem"] == [0.75, 0.0, 0.25]
    assert row["accuracy_by_run"] == pytest.approx([3 / 6, 1 / 6])  # the first two samples of each, and the other two
    assert row["pass@2"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert row["pass@4"] == pytest.approx(2 / 3)
    # variances of one response: 3/4 * 1/4 * 4/3, twice
    assert row["avg@1/se"] == pytest.approx(math.sqrt(0.25 + 0.25) / 3)
    assert row["avg@4/se"] == pytest.approx(row["avg@1/se"] / 2)
    assert (row["n_problems"], row["n_samples"], row["length_mean"], row["truncated"]) == (3, 12, 5.0, 0.25)
    assert {key: value for key, value in row.items() if key.startswith("reasons/")} == {
        "reasons/different": 4,
        "reasons/no_answer": 1,
        "reasons/number": 3,
        "reasons/text": 1,
        "reasons/timeout": 3,
    }


def test_avg_at_k_scatters_as_it_says():
    """Single evaluations of 8 samples, as in the abstract of the paper, are drawn out of one of 64."""
    rng = np.random.default_rng(1)
    rates = rng.beta(0.4, 0.8, 30)
    said = np.mean([summary(draw(rng, rates, 64), k=[8])["avg@8/se"] for _ in range(200)])
    seen = np.std([draw(rng, rates, 8).mean() for _ in range(4000)])
    assert said == pytest.approx(seen, rel=0.05)


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
    trials, over_problems, over_samples, passed = 1500, 0, 0, 0
    k = samples // 2
    pass_rate = np.mean(1 - (1 - rng.beta(a, b, 400_000)) ** k)
    for _ in range(trials):
        rates = rng.beta(a, b, problems)
        rewards = draw(rng, rates, samples)
        low, high = interval_over_problems(rewards.mean(1), samples)
        over_problems += low <= a / (a + b) <= high
        low, high = interval_over_samples(rewards)
        over_samples += low <= rates.mean() <= high
        row = summary(rewards, k=[k])
        passed += row[f"pass@{k}/low"] <= pass_rate <= row[f"pass@{k}/high"]
    # Near 95 % where problems are much alike; above it for few problems of very different rates.
    for covered in (over_problems, over_samples, passed):
        assert 0.935 <= covered / trials <= 0.995


def test_the_choice_of_problems_adds_to_the_sampling():
    rewards = draw(np.random.default_rng(3), np.array([0.02, 0.98] * 15), 16)
    row = summary(rewards)
    assert row["accuracy/high"] - row["accuracy/low"] > 5 * (row["accuracy/high_samples"] - row["accuracy/low_samples"])
    assert row["accuracy/low"] < row["accuracy/low_samples"] < row["accuracy"] < row["accuracy/high_samples"]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_nothing_right_or_nothing_wrong_still_has_an_interval(value):
    row = summary(np.full((30, 16), value), k=[16])
    width = {name: row[f"accuracy/high{name}"] - row[f"accuracy/low{name}"] for name in ("", "_samples")}
    assert width[""] == pytest.approx(3 / 30, abs=0.03)  # the rule of three, over the problems
    assert width["_samples"] == pytest.approx(3 / 480, abs=0.003)  # and over the samples
    assert row["accuracy"] in (row["accuracy/low"], row["accuracy/high"])
    assert row["pass@16"] == value


@pytest.mark.parametrize(("problems", "t"), [(2, 12.7062), (3, 4.3027), (31, 2.0423)])
def test_the_interval_over_problems_is_students(problems, t):
    values = np.arange(problems, dtype=float)
    low, high = interval_over_problems(values, 4, binary=False)
    assert (high - low) / 2 == pytest.approx(t * values.std(ddof=1) / math.sqrt(problems), rel=1e-4)


def test_rewards_that_are_not_right_or_wrong_have_no_pass_at_k():
    row = summary(np.array([[0.5, 1.5], [2.0, -1.0], [0.0, 0.0]]), k=[2])
    assert row["avg@2"] == row["accuracy"] == pytest.approx(0.5)
    assert "pass@2" not in row and row["accuracy/low"] < 0 < row["accuracy/high"]


def test_one_problem_has_no_interval_over_problems_and_one_sample_no_scatter():
    row = summary(np.array([[1.0, 0.0]]), k=[1])
    assert "accuracy/low" not in row and row["accuracy/low_samples"] < 0.5
    row = summary(np.array([[1.0], [0.0]]), k=[1])
    assert "avg@1/se" not in row and row["accuracy/low_samples"] < 0.5 < row["accuracy/high_samples"]


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
