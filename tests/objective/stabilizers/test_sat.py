from __future__ import annotations

import math

import paper_equations as paper
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from methods_under_test import at
from views import make_batch, view_of

from sat_slime.objective import (
    SAT,
    Clip,
    compose,
    contraction_factors,
    named_method,
    policy_surrogate,
    scope_too_small,
    tail_quantile,
)
from sat_slime.objective.ratio import log_ratio
from sat_slime.objective.stabilizers.clips.sat import radii


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


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), eps=st.floats(1e-4, 0.9), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_interval_is_contained_in_ppos_and_is_ppos_where_the_gate_is_shut(
    seed: int, eps: float, dtype: torch.dtype
) -> None:
    d = torch.randn(50, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    c_low, c_high = contraction_factors(d, tail_quantile(d, 0.9))
    below, above = radii((eps, 2 * eps), c_low, c_high)
    base_below, base_above = (torch.tensor(radius, dtype=dtype) for radius in (eps, 2 * eps))
    assert ((below >= 0) & (below <= base_below) & (above >= 0) & (above <= base_above)).all()
    assert torch.equal(below == base_below, c_low == 1) and torch.equal(above == base_above, c_high == 1)


@pytest.mark.parametrize("eps", [0.2, 0.28, 0.02, 3e-4])
def test_with_the_gate_shut_the_loss_is_the_bases_to_the_bit(eps: float) -> None:
    batch = paper.random_tokens(3, [200, 300], 0.4, inactive=0.1).batch()
    clip = Clip(eps, eps)
    shut, base = (
        policy_surrogate(compose(named_method("grpo").base, more, trust_region=clip), batch)
        for more in ([SAT(alpha=1.0)], [])
    )
    assert torch.equal(shut.values, base.values) and torch.equal(shut.clipped, base.clipped)
    slopes = [torch.autograd.grad(one.values.sum(), batch.log_probs)[0] for one in (shut, base)]
    assert torch.equal(*slopes)


def test_scope_too_small() -> None:
    assert not scope_too_small(0.9, 10, 1)
    assert scope_too_small(0.9, 9, 1)
    assert not scope_too_small(0.9, 1000, 100)
    assert scope_too_small(0.9, 1000, 101)
    assert scope_too_small(1.0, 1000, 1)


def sat_by_hand(sat: SAT, clip: Clip, d: torch.Tensor, advantages: torch.Tensor, stale: torch.Tensor) -> torch.Tensor:
    """The paper's equations in its order, in tensors of their own: sorted quantile, gate, kernel, radii, clip, min."""
    ordered = stale.sort().values
    q = ordered[next(k for k in range(len(ordered)) if (k + 1) / len(ordered) >= sat.alpha - 1e-12)]
    factor = torch.where((q > 0) & (stale > q), 1 / (1 + (stale / q).pow(sat.exponent)), torch.ones_like(stale))
    low = 1 - clip.eps_low * torch.where(d < 0, factor, torch.ones_like(factor))
    high = 1 + clip.eps_high * torch.where(d > 0, factor, torch.ones_like(factor))
    ratio = d.exp()
    held = torch.where(ratio < low, low, torch.where(ratio > high, high, ratio))
    return torch.where(held * advantages < ratio * advantages, held * advantages, ratio * advantages)


@pytest.mark.parametrize("base", ["grpo", "gspo"])
@pytest.mark.parametrize("score", ["log_ratio", "tv"])
@settings(max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    spread=st.floats(0.01, 1.0),
    alpha=st.sampled_from([0.5, 0.7, 0.9, 1.0]),
    exponent=st.sampled_from([1.0, 2.0, 3.5]),
)
def test_the_loss_is_the_equations(
    base: str, score: str, seed: int, spread: float, alpha: float, exponent: float
) -> None:
    """Value and gradient are compared in float64, so that no end of an interval rounds to the other side of a ratio."""
    sat, clip = SAT(score=score, alpha=alpha, exponent=exponent), Clip(0.2, 0.28)
    method = compose(named_method(base).base, [sat], trust_region=clip)
    batch = paper.random_tokens(seed, [6, 1, 9, 4, 40], spread, inactive=0.0).batch()
    values = policy_surrogate(method, batch).values
    d = log_ratio(method.ratio, "rollout", batch)
    plain = sat_by_hand(sat, clip, d, batch.advantages, sat.staleness(view_of(method.base, batch)).detach())
    torch.testing.assert_close(values, plain, rtol=1e-13, atol=1e-13)
    (slopes,), (expected,) = (torch.autograd.grad(x.sum(), batch.log_probs, retain_graph=True) for x in (values, plain))
    torch.testing.assert_close(slopes, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.7, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("n", [1, 9, 10, 57])
def test_the_quantile_is_the_smallest_value_that_holds_the_share(n: int, alpha: float) -> None:
    d = torch.randn(n, generator=torch.Generator().manual_seed(n)).mul(3).round()  # with ties
    below = [sum(abs(other) <= x for other in d.tolist()) for x in sorted(d.abs().tolist())]
    expected = next(x for x, count in zip(sorted(d.abs().tolist()), below, strict=True) if count >= alpha * n - 1e-9)
    assert tail_quantile(d.abs(), alpha) == expected


# -------------------------------------------------------------------------------------------- by the total variation


def test_the_score_tv_is_the_distance_of_the_probabilities() -> None:
    batch = make_batch([0.6, 0.1, 0.02, 0.9], [0.5, 0.3, 0.01, 0.9], [1.0] * 4, [3, 1], proximal=[0.6, 0.2, 0.01, 0.8])
    token, sequence = named_method("grpo").base, named_method("gspo").base
    score = SAT(score="tv").staleness
    assert score(view_of(token, batch)).tolist() == pytest.approx([0.1, 0.2, 0.01, 0])
    assert score(view_of(token, batch, "checkpoint")).tolist() == pytest.approx([0, 0.1, 0.01, 0.1])
    assert score(view_of(sequence, batch)).tolist() == pytest.approx([0.31 / 3] * 3 + [0])
    assert SAT().staleness(view_of(token, batch)).tolist() == pytest.approx([math.log(x) for x in (1.2, 3, 2, 1)])


def test_tv_finds_another_tail_than_the_log_ratio() -> None:
    """Nine tokens near mu and one rare token at twice its probability: it is the stalest by |d|, and not by tv."""
    mu = [0.5] * 9 + [0.001]
    pi = [0.5, 0.51, 0.52, 0.53, 0.54, 0.55, 0.56, 0.57, 0.59, 0.002]
    batch = make_batch(pi, mu, [1.0] * 10, [10])
    by_ratio, by_tv = (policy_surrogate(at("grpo", SAT(score=score)), batch) for score in ("log_ratio", "tv"))
    assert by_ratio.metrics["sat/q"].item() == pytest.approx(math.log(0.59 / 0.5))
    assert by_tv.metrics["sat/q"].item() == pytest.approx(0.07)
    # The tail by tv is the token at 0.59: its upper radius is 0.2 / (1 + (0.09 / 0.07)^2) = 0.0754.
    assert by_tv.values[8].item() == pytest.approx(1 + 0.2 / (1 + (9 / 7) ** 2))
    assert by_ratio.values[8].item() == pytest.approx(1.18)
    assert by_tv.metrics["sat/newly_clipped"].item() == pytest.approx(0.1)
    assert by_tv.metrics["sat/gate_rate"].item() == by_ratio.metrics["sat/gate_rate"].item() == pytest.approx(0.1)
