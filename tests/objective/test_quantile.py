from __future__ import annotations

import math
from fractions import Fraction

import paper_equations as paper
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sat_slime.objective import tail_quantile
from sat_slime.objective.quantile import longest_prefix_end
from sat_slime.objective.terms import quantile_rank

finite = st.floats(0, 2.0**100, width=32)
exact = st.integers(0, 64).map(lambda n: n / 64)
"""Numbers whose sums and products have no rounding, so that a mean at the bound is at the bound."""


@pytest.mark.parametrize(
    "alpha, n, rank",
    [(0.9, 10, 9), (0.7, 10, 7), (0.9, 11, 10), (0.1, 30, 3), (0.3, 10, 3), (1.0, 7, 7), (1, 7, 7), (0.01, 5, 1)],
)
def test_rank_is_exact_for_the_decimal_that_was_written(alpha: float, n: int, rank: int) -> None:
    assert quantile_rank(alpha, n) == rank


def test_rank_has_no_rounding_at_any_size() -> None:
    assert quantile_rank(0.9, 10**17) == 9 * 10**16
    assert all(
        quantile_rank(a / 100, n) == math.ceil(Fraction(a, 100) * n) for a in range(1, 101) for n in range(1, 60)
    )


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.1, math.nan])
def test_level_out_of_range(alpha: float) -> None:
    with pytest.raises(ValueError, match="the quantile's level is in"):
        tail_quantile(torch.ones(3), alpha)


@settings(max_examples=200)
@given(values=st.lists(finite, min_size=1, max_size=60), alpha=st.sampled_from([0.01, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0]))
def test_quantile_is_the_definition(values: list[float], alpha: float) -> None:
    assert tail_quantile(torch.tensor(values, dtype=torch.float64), alpha).item() == paper.quantile(values, alpha)


@settings(max_examples=50)
@given(values=st.lists(st.floats(0, 1e3, width=32), min_size=1, max_size=40), power=st.integers(-10, 10))
def test_quantile_scales_with_the_values_and_ignores_their_order(values: list[float], power: int) -> None:
    tensor = torch.tensor(values, dtype=torch.float64)
    q = tail_quantile(tensor, 0.9)
    assert tail_quantile(tensor * 2.0**power, 0.9) == q * 2.0**power
    assert tail_quantile(tensor[torch.randperm(len(values))], 0.9) == q


def test_ties_and_zeros() -> None:
    assert tail_quantile(torch.tensor([1.0, 1.0, 1.0, 2.0]), 0.75) == 1.0
    assert tail_quantile(torch.tensor([0.0] * 9 + [5.0]), 0.9) == 0.0
    assert tail_quantile(torch.tensor([3.0]), 0.9) == 3.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    values = torch.rand(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    q = tail_quantile(values, 0.9)
    assert q.dtype == (torch.float64 if dtype == torch.float64 else torch.float32) and q.dim() == 0
    assert q.item() == sorted(values.tolist())[899]
    assert tail_quantile(values[:0], 0.9) == 0


def test_gradient_stops_at_the_quantile() -> None:
    assert not tail_quantile(torch.ones(4, requires_grad=True), 0.9).requires_grad


def test_nan_is_larger_than_any_number_and_infinity_is_a_value() -> None:
    assert tail_quantile(torch.tensor([1.0, math.nan, 2.0, math.nan]), 0.5) == 2.0
    assert tail_quantile(torch.tensor([1.0, math.nan]), 0.9).isnan()
    assert tail_quantile(torch.tensor([1.0, math.inf]), 0.9) == math.inf
    assert tail_quantile(torch.tensor([1.0, math.inf]), 0.5) == 1.0


def prefix_end(values: list[float], mean: float) -> float:
    """By its definition: every x of the values, with all that are at or below it."""
    up_to = {x: [Fraction(v) for v in values if v <= x] for x in values if x < math.inf}
    return max((x for x, taken in up_to.items() if sum(taken) <= Fraction(mean) * len(taken)), default=0.0)


@settings(max_examples=300)
@given(
    values=st.lists(exact | st.just(math.inf), max_size=40),
    mean=exact,
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_prefix_end_is_the_definition(values: list[float], mean: float, dtype: torch.dtype) -> None:
    end = longest_prefix_end(torch.tensor(values, dtype=dtype), mean)
    assert end.item() == prefix_end(values, mean)
    assert end.dtype == dtype and end.dim() == 0


@settings(max_examples=200)
@given(values=st.lists(st.floats(0, 1e3, width=32), min_size=1, max_size=40), mean=st.floats(0, 1e3))
def test_values_up_to_the_prefix_end_fit_and_one_more_does_not(values: list[float], mean: float) -> None:
    end = longest_prefix_end(torch.tensor(values, dtype=torch.float64), mean).item()
    kept = [v for v in values if v <= end]
    more = sorted(v for v in values if v > end)
    if kept:  # where none fits the end is 0, and no value is
        assert math.fsum(kept) <= mean * len(kept) * (1 + 1e-12)
    if more:
        wider = [v for v in values if v <= more[0]]
        assert math.fsum(wider) >= mean * len(wider) * (1 - 1e-12)


@settings(max_examples=50)
@given(values=st.lists(exact, min_size=1, max_size=40), mean=exact, power=st.integers(-10, 10))
def test_prefix_end_scales_ignores_the_order_and_rises_with_the_mean(
    values: list[float], mean: float, power: int
) -> None:
    tensor = torch.tensor(values, dtype=torch.float64)
    end = longest_prefix_end(tensor, mean)
    assert longest_prefix_end(tensor * 2.0**power, mean * 2.0**power) == end * 2.0**power
    assert longest_prefix_end(tensor[torch.randperm(len(values))], mean) == end
    assert longest_prefix_end(tensor, mean + 1 / 64) >= end


def test_prefix_end_of_equal_values_and_of_none() -> None:
    assert longest_prefix_end(torch.tensor([1.0, 3.0, 3.0]), 2.0) == 1.0  # one of the two alone would fit
    assert longest_prefix_end(torch.tensor([1.0, 2.0, 3.0]), 2.0) == 3.0
    assert longest_prefix_end(torch.tensor([1.0, 2.0]), 0.5) == 0.0
    assert longest_prefix_end(torch.tensor([0.0, 2.0]), 0.5) == 0.0
    assert longest_prefix_end(torch.zeros(0), 0.5) == 0.0
    assert longest_prefix_end(torch.tensor([1e-3, 2e-3, math.inf, math.inf]), 0.04) == torch.tensor(2e-3)


def test_prefix_end_tells_neighbouring_floats_apart() -> None:
    one = torch.ones(1)
    more = torch.nextafter(one, one * 2)
    assert longest_prefix_end(torch.cat([one, more]), 1.0) == one
    assert longest_prefix_end(torch.cat([one, more]), 1.1) == more


def test_prefix_end_is_detached() -> None:
    assert not longest_prefix_end(torch.ones(4, requires_grad=True), 2.0).requires_grad
