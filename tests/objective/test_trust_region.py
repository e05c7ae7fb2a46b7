from __future__ import annotations

import math
from fractions import Fraction

import paper_equations as paper
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sat_slime.objective import SAT, Clip, contraction_factors, scope_too_small, tail_quantile
from sat_slime.objective.trust_region import clip_ends, contracted_ends, quantile_rank

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


def test_contraction_factors_known_values() -> None:
    d = torch.tensor([-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0], dtype=torch.float64)
    c_low, c_high = contraction_factors(d, torch.tensor(2.0))
    assert c_low.tolist() == pytest.approx([0.2, 1, 1, 1, 1, 1, 1])
    assert c_high.tolist() == pytest.approx([1, 1, 1, 1, 1, 1, 0.2])
    c_low, c_high = contraction_factors(d, 1.0, exponent=1.0)
    assert c_low.tolist() == pytest.approx([1 / 5, 1 / 3, 1, 1, 1, 1, 1])
    assert c_high.tolist() == pytest.approx([1, 1, 1, 1, 1, 1 / 3, 1 / 5])


def test_gate_is_strict_and_shut_at_zero() -> None:
    d = torch.tensor([0.3, -0.3, 0.30000004])
    c_low, c_high = contraction_factors(d, d[0])
    assert c_low.tolist() == [1, 1, 1]
    assert (c_high < 1).tolist() == [False, False, True]
    for factors in contraction_factors(d, 0.0):
        assert factors.tolist() == [1, 1, 1]


@pytest.mark.parametrize("q", [1e-38, 1.0, 1e38, math.inf])
def test_factors_are_never_nan(q: float) -> None:
    d = torch.tensor([0.0, 1e-45, 1.0, 3e38, math.inf, -math.inf])
    for factors in contraction_factors(d, q):
        assert ((factors >= 0) & (factors <= 1)).all()


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), eps=st.floats(1e-4, 0.9), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_interval_is_contained_in_ppos_and_is_ppos_where_the_gate_is_shut(
    seed: int, eps: float, dtype: torch.dtype
) -> None:
    d = torch.randn(50, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    region = SAT(eps_low=eps, eps_high=2 * eps)
    c_low, c_high = contraction_factors(d, tail_quantile(d, 0.9))
    low, _ = contracted_ends(region, 1 - c_low)
    _, high = contracted_ends(region, 1 - c_high)
    base_low, base_high = (torch.tensor(end, dtype=dtype) for end in clip_ends(Clip(eps, 2 * eps)))
    assert ((low >= base_low) & (low <= 1) & (high >= 1) & (high <= base_high)).all()
    assert torch.equal(low == base_low, c_low == 1) and torch.equal(high == base_high, c_high == 1)
    slack = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(low, 1 - eps * c_low, rtol=0, atol=slack)
    torch.testing.assert_close(high, 1 + 2 * eps * c_high, rtol=0, atol=2 * slack)


def test_scope_too_small() -> None:
    assert not scope_too_small(0.9, 10, 1)
    assert scope_too_small(0.9, 9, 1)
    assert not scope_too_small(0.9, 1000, 100)
    assert scope_too_small(0.9, 1000, 101)
    assert scope_too_small(1.0, 1000, 1)
