from __future__ import annotations

import math
from fractions import Fraction

import paper_equations as paper
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sat_slime.objective import tail_quantile
from sat_slime.objective.quantile import quantile_rank

finite = st.floats(0, 2.0**100, width=32)


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


@settings(max_examples=200, deadline=None)
@given(values=st.lists(finite, min_size=1, max_size=60), alpha=st.sampled_from([0.01, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0]))
def test_quantile_is_the_definition(values: list[float], alpha: float) -> None:
    assert tail_quantile(torch.tensor(values, dtype=torch.float64), alpha).item() == paper.quantile(values, alpha)


@settings(max_examples=50, deadline=None)
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


def test_nan_is_named_and_infinity_is_a_value() -> None:
    with pytest.raises(ValueError, match="2 of 4 log-ratios are NaN"):
        tail_quantile(torch.tensor([1.0, math.nan, 2.0, math.nan]), 0.5)
    assert tail_quantile(torch.tensor([1.0, math.inf]), 0.9) == math.inf
    assert tail_quantile(torch.tensor([1.0, math.inf]), 0.5) == 1.0
