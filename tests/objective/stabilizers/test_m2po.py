"""M2PO's selection, against sort-and-prefix by its definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from views import make_batch, view_of

from sat_slime.objective import TokenBatch, compose, policy_surrogate
from sat_slime.objective.stabilizers.gates.m2po import M2PO
from sat_slime.objective.stabilizers.gates.m2po_lag import M2POByLag


def kept(d: list[float], advantages: list[float], threshold: float) -> list[float]:
    """What M2PO multiplies the tokens by, d being their log-ratios."""
    one = M2PO(threshold=threshold)
    mu = torch.full((len(d),), -1.0, dtype=torch.float64)
    ones = torch.ones(len(d), dtype=torch.bool)
    batch = TokenBatch(mu + torch.tensor(d).double(), mu, torch.tensor(advantages).double(), ones, [len(d)])
    view = view_of(one, batch)
    view.threshold = one.threshold_of(one.scores(view))
    return one.factor(view).tolist()


@pytest.mark.parametrize(
    "d, advantages, expected",
    [
        ([0.1, 0.2, 0.3], [1, 1, 1], [1, 1, 1]),  # mean 0.0467 of all, 0.025 of two
        ([0.1, 0.2, 0.31, 0.05], [1, 1, 1, 1], [1, 1, 1, 1]),
        ([0.1, 0.2, 0.31, 9.0], [1, 1, -1, -1], [1, 1, 1, 1]),  # what is drawn back is kept, however far
        ([0.1, 0.2, 0.31, -9.0], [1, 1, -1, 1], [1, 1, 1, 1]),
        ([0.1, -0.2, 9.0, -9.0], [1, -1, 0, 0], [1, 1, 1, 1]),  # without advantage nothing leads outward
        ([0.1, 0.2, 0.9], [1, 1, 1], [1, 1, 0]),
        ([0.5, 0.6, 0.7], [1, 1, 1], [0, 0, 0]),  # none fits
        ([0.1, -0.5, 0.5], [1, -1, 1], [1, 0, 0]),  # equal ones go together
        ([0.2, 0.2, -0.2], [1, 1, -1], [1, 1, 1]),
        ([-3.0], [1], [1]),
        ([], [], []),
    ],
)
def test_known_selections(d: list[float], advantages: list[float], expected: list[float]) -> None:
    assert kept(d, advantages, 0.05) == expected


steps = st.sampled_from([0.0, 1e-3, 0.05, 0.1, 0.2, 0.3, 1.0, 5.0])


@settings(max_examples=200)
@given(
    tokens=st.lists(st.tuples(steps, st.sampled_from([-1, 1]), st.sampled_from([-2.0, 0.0, 0.5])), max_size=30),
    threshold=st.sampled_from([1e-4, 0.013, 0.04, 0.5, 100.0]),
)
def test_the_selection_is_its_definition(tokens: list[tuple[float, int, float]], threshold: float) -> None:
    d, advantages = [sign * size for size, sign, _ in tokens], [a for *_, a in tokens]
    factor = kept(d, advantages, threshold)
    outward = sorted((x * x, t) for t, (x, a) in enumerate(zip(d, advantages, strict=True)) if a * x > 0)
    assert all(factor[t] == 1 for t in set(range(len(d))) - {t for _, t in outward})
    chosen = [square for square, t in outward if factor[t] == 1]
    assert chosen == [square for square, _ in outward][: len(chosen)], "a prefix of the sorted ones"
    assert math.fsum(chosen) <= threshold * len(chosen) * (1 + 1e-12), "within the budget"
    rest = [square for square, t in outward if factor[t] == 0]
    if rest:
        group = [square for square in rest if square == rest[0]]
        longer = chosen + group
        assert math.fsum(longer) > threshold * len(longer) * (1 - 1e-12), "the next ones do not fit"


def test_the_mean_that_is_exactly_the_threshold_fits() -> None:
    assert kept([0.5, 0.5], [1, 1], 0.25) == [1, 1]
    assert kept([0.25, 0.5], [1, 1], 0.15625) == [1, 1]


def test_the_scores_are_of_the_outward_tokens_alone() -> None:
    batch = make_batch([0.6, 0.6, 0.4, 0.4, 0.5], [0.5] * 5, [1.0, -1.0, 1.0, -1.0, 1.0], [5])
    scores = M2PO().scores(view_of(M2PO(), batch))
    assert scores.tolist() == pytest.approx([math.log(1.2) ** 2, math.log(0.8) ** 2])


def test_a_nan_among_the_active_tokens_is_told() -> None:
    batch = make_batch([0.6, 0.5], [0.5, 0.5], [1.0, 1.0], [2])
    batch.log_probs[1] = math.nan
    scores = M2PO().scores(view_of(M2PO(), batch))
    with pytest.raises(ValueError, match="1 of 2 values are NaN"):
        M2PO().threshold_of(scores)


def by_lag(d: list[float], lags: list[float], threshold: float, power: float) -> list[float]:
    """What M2PO by lag multiplies tokens by whose updates all lead outward."""
    one = M2POByLag(threshold=threshold, power=power)
    batch = make_batch([0.1 * math.exp(x) for x in d], [0.1] * len(d), [1.0] * len(d), [len(d)], lags=lags)
    view = view_of(one, batch)
    view.threshold = one.threshold_of(one.scores(view))
    return one.factor(view).tolist()


def test_by_lag_a_batch_of_one_lag_has_the_threshold_of_that_lag() -> None:
    d = [0.1, 0.2, 0.3, 0.5, 0.9]
    for lag, power, threshold in ((0, 0.9, 0.03), (1, 0.9, 0.03), (4, 0.5, 0.06), (16, 0.5, 0.12), (4, 0.0, 0.03)):
        assert by_lag(d, [lag] * 5, 0.03, power) == kept(d, [1.0] * 5, threshold)


def test_by_lag_each_token_is_judged_by_its_own() -> None:
    assert by_lag([0.1, 0.6, 0.6], [1, 36, 1], 0.05, 1.0) == [1, 1, 0]  # 0.01, 0.01 and 0.36


def test_by_lag_the_bound_is_a_metric() -> None:
    one = M2POByLag(threshold=0.01, power=0.5, scope="microbatch")
    batch = make_batch([0.5] * 3, [0.5] * 3, [1.0] * 3, [3], lags=[0, 4, 9])
    metrics = policy_surrogate(compose(one), batch).metrics
    assert float(metrics["m2po_lag/threshold"]) == pytest.approx(0.01 * (1 + 2 + 3) / 3)
    assert float(metrics["m2po_lag/largest"]) == 0 == float(metrics["m2po_lag/masked"])
