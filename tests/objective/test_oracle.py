"""Values, gradients, clipped tokens and metrics of every method against its equations in plain floats."""

from __future__ import annotations

import math

import equations as paper
import pytest
import torch
from methods_under_test import LENGTHS, METHODS

from sat_slime.objective import Method, policy_surrogate


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}-{method.denominator}")
def test_a_method_is_its_equation(method: Method) -> None:
    for seed, spread in ((3, 0.05), (3, 0.5), (5, 0.9)):
        check(method, paper.random_tokens(seed, LENGTHS, spread))


def check(method: Method, tokens: paper.Tokens) -> None:
    batch, decisions = tokens.batch(), paper.decide(method, tokens)
    result = policy_surrogate(method, batch)
    assert result.values.tolist() == pytest.approx(paper.surrogate(method, tokens, decisions), rel=1e-9, abs=1e-12)
    assert result.n == len(tokens.active)

    weights = torch.rand(len(tokens.log_pi), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((weights * result.values).sum(), batch.log_probs)
    expected = paper.gradient(method, tokens, decisions, weights.tolist())
    assert gradient.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-8)

    cut = {t: is_cut(method, tokens, decisions[t], t) for t in decisions}
    assert result.clipped.tolist() == [cut.get(t, False) for t in range(len(tokens.log_pi))]
    metrics = expected_metrics(method, tokens, decisions, cut)
    assert {name: float(result.metrics[name]) for name in metrics} == pytest.approx(metrics, rel=1e-9, abs=1e-12)
    tensors = [value for value in result.metrics.values() if isinstance(value, torch.Tensor)]
    assert not any(value.requires_grad or value.dim() for value in tensors)


def ratio_of(method: Method, tokens: paper.Tokens, t: int) -> float:
    return math.exp(paper.numbers_of(method, tokens).d[t])


def is_cut(method: Method, tokens: paper.Tokens, decision: paper.Decision, t: int) -> bool:
    """clip(r) A < r A."""
    if method.instead is not None:
        return False
    r, A = ratio_of(method, tokens, t), tokens.advantages[t]
    return min(max(r, decision.low), decision.high) * A < r * A


def expected_metrics(
    method: Method, tokens: paper.Tokens, decisions: dict[int, paper.Decision], cut: dict[int, bool]
) -> dict[str, float]:
    """The metrics by their definitions."""
    numbers = paper.numbers_of(method, tokens)
    n, A = len(decisions), tokens.advantages

    def mean(values) -> float:
        return math.fsum(values) / n

    metrics = {}
    for stabilizer in (*method.gates, *method.weights):
        factors = [paper.factor(stabilizer, method, numbers, t, None) for t in decisions]
        if stabilizer in method.gates:
            metrics[f"{stabilizer.prefix()}/masked"] = mean(factor == 0 for factor in factors)
        else:
            metrics[f"{stabilizer.prefix()}/weight"] = mean(factors)
        if stabilizer.name == "tis":
            metrics["tis/capped"] = mean(factor == stabilizer.cap for factor in factors)
    if method.instead is not None:
        if hasattr(method.instead, "weight"):
            metrics[f"{method.instead.prefix()}/weight"] = mean(decision.weight for decision in decisions.values())
        return metrics
    metrics |= {
        "clip/fraction": mean(cut.values()),
        "clip/upper": mean(cut[t] and A[t] > 0 for t in cut),
        "clip/lower": mean(cut[t] and A[t] < 0 for t in cut),
    }
    base = {t: paper.radii(method, numbers, t, None) for t in decisions}
    if method.radius_policy is not None:
        metrics |= {
            "radius/low": mean(low for low, _ in base.values()),
            "radius/high": mean(h for _, h in base.values()),
        }
    if method.sat is not None:
        ratios = {t: math.exp(numbers.d[t]) for t in decisions}
        inside = {t: 1 - base[t][0] <= ratios[t] <= 1 + base[t][1] for t in decisions}
        metrics |= {
            "sat/gate_rate": mean(decision.gated for decision in decisions.values()),
            "sat/newly_clipped": mean(cut[t] and inside[t] and decisions[t].factor > 0 for t in decisions),
        }
    return metrics
