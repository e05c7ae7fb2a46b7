"""The clip interval that grows with the lag: its radii, its rest at lag 0, and what SAT makes of it."""

from __future__ import annotations

import math
from dataclasses import replace

import paper_equations as paper
import pytest
import torch
from views import make_batch, view_of

from sat_slime.objective import (
    Clip,
    Method,
    Surrogate,
    check_method,
    compose,
    interval_radii,
    named_method,
    policy_surrogate,
)
from sat_slime.objective.stabilizers.clips.lag_power import LagPower


def with_power(name: str, power: float, clip: Clip | None = None) -> Method:
    method = named_method(name)
    stabilizers = tuple(replace(one, power=power) if one.name == "lag-power" else one for one in method.stabilizers)
    return replace(method, stabilizers=stabilizers, trust_region=clip or method.trust_region)


def learnt(method: Method, tokens: paper.Tokens) -> tuple[Surrogate, torch.Tensor]:
    """The surrogate, and its gradient."""
    batch = tokens.batch()
    surrogate = policy_surrogate(method, batch)
    surrogate.values.sum().backward()
    return surrogate, batch.log_probs.grad


def test_the_radius_of_each_token_is_that_of_its_own_lag() -> None:
    batch = make_batch([0.5] * 5, [0.5] * 5, [1.0] * 5, [2, 3], lags=[0, 1, 4, 9, 64])
    low, high = interval_radii(with_power("grpo-lag-power", 0.5, Clip(0.1, 0.2)), batch)
    assert low.tolist() == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.8])
    assert high.tolist() == pytest.approx([0.2, 0.2, 0.4, 0.6, 1.6])


def test_a_response_has_the_radius_of_its_mean_lag_under_the_sequence_ratio() -> None:
    batch = make_batch([0.5] * 5, [0.5] * 5, [1.0] * 5, [2, 3], lags=[0, 1, 1, 2, 9])
    low, high = interval_radii(with_power("gspo-lag-power", 0.75, Clip(0.01, 0.02)), batch)
    assert low.tolist() == pytest.approx([0.01] * 2 + [0.01 * 4**0.75] * 3)
    assert high.tolist() == pytest.approx([0.02] * 2 + [0.02 * 4**0.75] * 3)


@pytest.mark.parametrize("name", ["grpo", "gspo", "sat-grpo", "sat-gspo", "dppo"])
@pytest.mark.parametrize("lag", [0.0, 1.0])
def test_at_lag_0_and_1_it_is_its_base_to_the_bit(name: str, lag: float) -> None:
    tokens = paper.random_tokens(seed=5, lengths=[5, 1, 0, 9], spread=0.5)
    tokens.lags = [lag] * 15
    ours, plain = (learnt(named_method(method), tokens) for method in (f"{name}-lag-power", name))
    assert torch.equal(ours[0].values, plain[0].values) and torch.equal(ours[1], plain[1])
    assert torch.equal(ours[0].clipped, plain[0].clipped)


@pytest.mark.parametrize("name", ["grpo", "gspo", "sat-grpo", "sat-gspo"])
def test_in_a_batch_of_one_lag_it_is_its_base_at_that_radius(name: str) -> None:
    tokens = paper.random_tokens(seed=5, lengths=[5, 1, 0, 9, 30], spread=0.5)
    tokens.lags = [16.0] * 45
    grown = with_power(f"{name}-lag-power", 0.5, Clip(0.05, 0.1))
    fixed = replace(named_method(name), trust_region=Clip(0.2, 0.4))
    ours, plain = learnt(grown, tokens), learnt(fixed, tokens)
    assert 0 < plain[0].metrics["clip/fraction"] < 1
    torch.testing.assert_close(ours[0].values, plain[0].values, rtol=1e-14, atol=0)
    torch.testing.assert_close(ours[1], plain[1], rtol=1e-14, atol=0)
    for metric, value in plain[0].metrics.items():
        assert float(ours[0].metrics[metric]) == pytest.approx(float(value), rel=1e-12), metric


def test_its_metrics_are_the_mean_radii_before_sat_contracts_them() -> None:
    pi = [0.6] * 19 + [0.3]
    batch = make_batch(pi, [0.5] * 20, [1.0] * 20, [20], lags=[0, 4, 9, 16] * 5)
    metrics = policy_surrogate(with_power("sat-grpo-lag-power", 0.5, Clip(0.1, 0.2)), batch).metrics
    assert float(metrics["radius/low"]) == pytest.approx(0.1 * (1 + 2 + 3 + 4) / 4)
    assert float(metrics["radius/high"]) == pytest.approx(0.2 * (1 + 2 + 3 + 4) / 4)
    contraction = 1 / (1 + (math.log(0.6) / math.log(1.2)) ** 2)  # of the last token, on its side
    assert float(metrics["sat/eps_low_mean"]) == pytest.approx(0.25 - 0.1 * 4 * (1 - contraction) / 20)
    assert float(metrics["sat/eps_high_mean"]) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["grpo-lag-power", "gspo-lag-power", "sat-gspo-lag-power"])
def test_a_batch_without_active_tokens_adds_nothing(name: str) -> None:
    tokens = paper.random_tokens(seed=5, lengths=[3, 0, 2], inactive=1.1)
    surrogate, gradient = learnt(named_method(name), tokens)
    assert not surrogate.values.any() and not gradient.any()
    assert all(torch.isfinite(value) for value in surrogate.metrics.values())


def test_from_radius_1_on_there_is_no_lower_end() -> None:
    batch = make_batch([1e-6, 0.9], [0.5, 0.5], [-1.0, 1.0], [2], lags=[64, 64])
    surrogate = policy_surrogate(with_power("grpo-lag-power", 0.5), batch)
    assert surrogate.clipped.tolist() == [False, False], "interval of -0.6 to 2.6"


def test_lags_are_needed_and_asked_for() -> None:
    assert named_method("sat-grpo-lag-power").needs == ("lags",)
    with pytest.raises(ValueError, match="the batch has no lags"):
        policy_surrogate(named_method("grpo-lag-power"), make_batch([0.5], [0.5], [1.0], [1]))


@pytest.mark.parametrize("base", ["m2po", "cispo", "spo", "gmpo"])
def test_a_base_without_radii_is_refused_with_the_remedy(base: str) -> None:
    method = named_method(f"{base}-lag-power")
    with pytest.raises(ValueError, match="Lag-power has no radii to set: choose a clipping base such as grpo"):
        check_method(method)
    with pytest.raises(ValueError, match="leave SAT and radius policies out"):
        policy_surrogate(method, make_batch([0.5], [0.5], [1.0], [1], lags=[1], rewards=[1.0]))


def test_without_a_clip_there_is_nothing_to_scale() -> None:
    unclipped = compose(named_method("grpo").base, [LagPower()], trust_region=None)
    with pytest.raises(ValueError, match="trust_region is None, so Lag-power has no radii"):
        check_method(unclipped)


def test_the_view_is_not_written_to() -> None:
    batch = make_batch([0.5] * 2, [0.4] * 2, [1.0] * 2, [2], lags=[3, 0])
    lags = batch.lags.clone()
    LagPower().radii(0.2, 0.2, view_of(LagPower(), batch))
    assert torch.equal(batch.lags, lags)
