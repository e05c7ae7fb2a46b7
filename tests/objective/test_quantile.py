from __future__ import annotations

import math
from fractions import Fraction

import equations as paper
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sat_slime.objective import tail_quantile
from sat_slime.objective.quantile import longest_prefix_end
from sat_slime.objective.terms import quantile_rank

finite = st.floats(0, 2.0**100, width=32)
exact = st.integers(0, 64).map(lambda n: n / 64)
"""Numbers whose sums and products have no rounding, so that a mean at the bound is at the bound."""


def test_rank_has_no_rounding_at_any_size() -> None:
    assert quantile_rank(0.9, 10**17) == 9 * 10**16 and quantile_rank(1, 7) == 7
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    values = torch.rand(1000, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    q = tail_quantile(values, 0.9)
    assert q.dtype == (torch.float64 if dtype == torch.float64 else torch.float32) and q.dim() == 0
    assert q.item() == sorted(values.tolist())[899] and not q.requires_grad
    assert tail_quantile(values[:0], 0.9) == 0


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
@example(values=[0.25] * 399, mean=0.25, dtype=torch.float32)
@example(values=[0.0, 0.08], mean=0.04, dtype=torch.float64)
@example(values=[0.04], mean=0.04, dtype=torch.float64)
@example(values=[1.0, 1 + 2**-23], mean=1.0, dtype=torch.float32)
@example(values=[1.0, 1 + 2**-23], mean=1.1, dtype=torch.float32)
def test_prefix_end_is_the_definition(values: list[float], mean: float, dtype: torch.dtype) -> None:
    end = longest_prefix_end(torch.tensor(values, dtype=dtype), mean)
    assert end.item() == prefix_end(values, mean)
    assert end.dtype == dtype and end.dim() == 0
