"""In gradient SAT is PPO at one radius a batch and side, and the metrics say which."""

from __future__ import annotations

import math

import equations as paper
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sat_slime.objective import SAT, Clip, MetricAccumulator, compose, named_method, policy_surrogate
from sat_slime.objective.sat import one_radius
from sat_slime.objective.stabilizer import Scope

LENGTHS = [6, 1, 9, 0, 12, 3, 8, 5, 2, 7]
WIDER = 1 + 1e-12
"""So that a ratio at the radius itself, which SAT keeps, is not lost to the last bit of 1 + (r - 1)."""

GRAIN = 2.0**-30


@pytest.mark.parametrize("base", ["grpo", "gspo", "grpo-tis", "dppo", "gspo-mis-geo"])
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    exponent=st.sampled_from([0.3, 1.0, 2.0, 3.7, 20.0]),
    alpha=st.sampled_from([0.3, 0.7, 0.9, 1.0]),
    low=st.sampled_from([0.02, 0.2, 0.8, 1.0, 1.6]),
    high=st.sampled_from([0.02, 0.2, 0.8, 1.6]),
    spread=st.sampled_from([1e-4, 0.05, 0.4, 3.0]),
    tied=st.booleans(),
    own_scope=st.booleans(),
)
def test_sats_gradient_is_ppos_at_the_radii_that_it_reports(
    base, seed, exponent, alpha, low, high, spread, tied, own_scope
) -> None:
    plain, tokens = named_method(base), paper.random_tokens(seed, LENGTHS, spread)
    if tied:  # every |d| is one of four, 0 among them, and exactly so: all are whole multiples of one number
        step = round(spread / 4 / GRAIN) * GRAIN
        parts = [round(4 * math.tanh((p - m) / spread)) for p, m in zip(tokens.log_pi, tokens.log_mu, strict=True)]
        tokens.log_mu = [round(mu / GRAIN) * GRAIN for mu in tokens.log_mu]
        tokens.log_pi = [mu + part * step for mu, part in zip(tokens.log_mu, parts, strict=True)]
    scope: Scope = "microbatch" if own_scope else "step"
    sat = compose(plain.base, [SAT(alpha, exponent, scope), *plain.stabilizers[1:]], clip=Clip(low, high))
    threshold = None if own_scope else 0.7 * spread
    batch = tokens.batch()
    result = policy_surrogate(sat, batch, threshold=threshold)
    found = {side: float(result.metrics[f"sat/radius_{side}"]) for side in ("low", "high")}
    ppo = compose(
        plain.base,
        plain.stabilizers[1:],
        clip=Clip(found["low"] * WIDER, found["high"] * WIDER),
        denominator=sat.denominator,
    )
    ours, theirs = (
        torch.autograd.grad(policy_surrogate(method, batch, threshold=q).values.sum(), batch.log_probs)[0]
        for method, q in ((sat, threshold), (ppo, None))
    )
    assert torch.equal(ours != 0, theirs != 0) and torch.allclose(ours, theirs, rtol=1e-12, atol=0)


@settings(max_examples=200, deadline=None)
@given(
    q=st.floats(0, 1e3) | st.just(math.inf),
    eps=st.floats(1e-6, 5),
    exponent=st.sampled_from([0.3, 1.0, 2.0, 8.0]),
    above=st.booleans(),
)
def test_the_radius_is_the_last_of_all_ratios_that_sat_keeps(q, eps, exponent, above) -> None:
    def kept(u: float) -> bool:
        c = 1 / (1 + (u / q) ** exponent) if 0 < q < u else 1.0
        return (math.expm1(u) if above else -math.expm1(-u)) <= eps * c

    radius = one_radius(q, eps, exponent, above=above)
    assert 0 <= radius <= eps
    if radius < 0.999 or above:  # nearer to 1 its u is lost to rounding
        u = math.log1p(radius) if above else -math.log1p(-radius)
        assert kept(u * (1 - 1e-9)) and not kept(u * (1 + 1e-9) + 1e-300)


@pytest.mark.parametrize(
    ("q", "eps", "radius"),
    [
        (0.0, 0.2, 0.2),  # the gate is shut
        (math.nan, 0.2, math.nan),
        (0.24, 0.2, 0.2),  # q behind the base's own end
        (0.15, 0.2, math.expm1(0.15)),  # the kernel's fall to 1/2 at q takes all behind it
        (900.0, 1.6, 1.6),  # e^q is no number
        (0.408, 1.6, 0.644),
        (0.555, 1.6, 0.774),
        (0.0075, 0.05, 0.0128),
    ],
)
def test_radii_that_are_known(q: float, eps: float, radius: float) -> None:
    assert one_radius(q, eps) == pytest.approx(radius, abs=6e-4, nan_ok=True)


def test_micro_batches_of_a_step_are_averaged_by_their_tokens_and_what_has_no_one_radius_reports_none() -> None:
    accumulator, expected = MetricAccumulator(), []
    for seed, n in ((1, 40), (2, 10)):
        result = policy_surrogate(named_method("sat-grpo"), paper.random_tokens(seed, [n], 0.3, inactive=0).batch())
        accumulator.add(result.metrics, result.n)
        expected.append(n * one_radius(float(result.metrics["sat/q"]), 0.2))
    assert accumulator.reduce()["sat/radius_high"] == pytest.approx(sum(expected) / 50)
    batch = paper.random_tokens(1, LENGTHS).batch()
    assert not any("radius_" in name for name in policy_surrogate(named_method("sat-grpo-lag-power"), batch).metrics)


def test_a_batch_without_tokens_has_the_base_radius() -> None:
    batch = paper.random_tokens(1, [3], inactive=1.0).batch()
    metrics = policy_surrogate(named_method("sat-grpo"), batch).metrics
    assert float(metrics["sat/radius_high"]) == float(metrics["sat/radius_low"]) == 0.2
