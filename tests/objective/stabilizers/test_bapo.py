"""BAPO's interval, by hand and against the search of its public code."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from views import make_batch, view_of

from sat_slime.objective import check_method, named_method, policy_surrogate
from sat_slime.objective.stabilizers.clips.bapo import BAPO


def interval(one: BAPO, ratios: list[float], advantages: list[float]) -> tuple[float, float]:
    batch = make_batch([0.1 * r for r in ratios], [0.1] * len(ratios), advantages, [len(ratios)])
    view = view_of(one, batch)
    view.threshold = one.threshold_of(one.scores(view))
    low, high = one.radii(0.2, 0.2, view)
    return round(1 - float(low), 9), round(1 + float(high), 9)


@pytest.mark.parametrize(
    "ratios, advantages, expected",
    [
        ([1.0, 1.0], [1.0, -1.0], (0.6, 1.2)),  # half of it is enough
        ([0.5, 0.5], [1.0, -1.0], (0.9, 3.0)),  # 0.5 against at least 0.6: no end is enough
        ([2.0, 1.3], [1.0, -1.0], (0.9, 1.3)),  # min(2, u) reaches 1.3 at u = 1.3
        ([2.0, 0.5], [1.0, -2.0], (0.6, 1.2)),  # 1.2 against 2 x 0.6
        ([2.0, 0.5], [1.0, -2.1], (0.9, 1.9)),  # 2.1 x 0.9 = 1.89
        ([3.0], [-1.0], (0.9, 3.0)),
        ([3.0], [1.0], (0.6, 1.2)),
        ([1.0], [0.0], (0.6, 1.2)),
    ],
)
def test_intervals_by_hand(ratios: list[float], advantages: list[float], expected: tuple[float, float]) -> None:
    assert interval(BAPO(), ratios, advantages) == expected


def searched(one: BAPO, ratios: list[float], advantages: list[float]) -> tuple[float, float]:
    """Raise the lower end, then the upper one, by their steps until positive over negative is as wanted."""

    def balance(low: float, high: float) -> float:
        terms = [(min(r, high) if a >= 0 else max(r, low)) * a for r, a in zip(ratios, advantages, strict=True)]
        bad = -math.fsum(x for x in terms if x < 0)
        return math.fsum(x for x in terms if x > 0) / bad if bad > 0 else math.inf

    target, low, high = one.share / (1 - one.share), one.lower_start, one.upper_start
    while balance(low, high) < target and low < one.lower_max:
        low = round(min(low + one.step, one.lower_max), 9)
    while balance(low, high) < target and high < one.upper_max:
        high = round(min(high + one.step, one.upper_max), 9)
    return low, high


@settings(max_examples=200)
@given(
    tokens=st.lists(
        st.tuples(st.floats(0.05, 5.0), st.sampled_from([-2.0, -0.7, 0.0, 0.3, 1.1])), min_size=1, max_size=20
    ),
    share=st.sampled_from([0.31, 0.5, 0.62]),
    step=st.sampled_from([0.05, 0.07, 0.5]),
)
def test_the_interval_is_that_of_the_search(tokens: list[tuple[float, float]], share: float, step: float) -> None:
    one = BAPO(share=share, step=step)
    ratios, advantages = [r for r, _ in tokens], [a for _, a in tokens]
    # where a balance is the target but for rounding either answer is right
    found, expected = interval(one, ratios, advantages), searched(one, ratios, advantages)
    if found != expected:
        near = [searched(replace(one, share=share + shift), ratios, advantages) for shift in (-1e-9, 1e-9)]
        assert found in near


def test_the_metrics_are_its_radii() -> None:
    batch = make_batch([0.2, 0.13], [0.1, 0.1], [1.0, -1.0], [2])
    metrics = policy_surrogate(named_method("grpo-bapo"), batch).metrics
    assert float(metrics["radius/low"]) == pytest.approx(0.1) and float(metrics["radius/high"]) == pytest.approx(0.3)


def test_a_nan_is_told() -> None:
    batch = make_batch([0.2, 0.13], [0.1, 0.1], [1.0, -1.0], [2])
    batch.log_probs[1] = math.nan
    with pytest.raises(ValueError, match="1 ratios or advantages are NaN"):
        policy_surrogate(named_method("grpo-bapo"), batch)


def test_the_ends_ascend_around_1() -> None:
    with pytest.raises(ValueError, match="do not ascend around 1"):
        BAPO(upper_start=0.9)


@pytest.mark.parametrize("name", ["sat-grpo-bapo", "grpo-lag-power-bapo"])
def test_one_threshold_and_one_policy(name: str) -> None:
    with pytest.raises(ValueError, match=r"both (judge by a threshold|set the radii)"):
        check_method(named_method(name))


def test_without_an_active_token_the_interval_is_the_first() -> None:
    one = BAPO()
    assert one.threshold_of(torch.zeros(0, 2)) == 0
