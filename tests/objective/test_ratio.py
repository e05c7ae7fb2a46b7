from __future__ import annotations

import math

import paper_equations as paper
import pytest
import torch

from sat_slime.objective import TokenBatch, compose_method, named_method, threshold_scores
from sat_slime.objective.ratio import log_ratio, sequence_max, sequence_sum


def test_denominators() -> None:
    tokens = paper.random_tokens(seed=1, lengths=[6], inactive=0.0)
    batch = tokens.batch()
    pi, mu, proximal = batch.log_probs.detach(), batch.rollout_log_probs, batch.proximal_log_probs
    for denominator, expected in (("rollout", pi - mu), ("trainer", pi - proximal), ("checkpoint", pi - proximal)):
        method = compose_method("grpo", denominator=denominator)
        assert torch.equal(log_ratio(method.ratio, method.denominator, batch).detach(), expected)
    tokens.log_proximal = None
    assert not log_ratio("token", "trainer", tokens.batch()).any()


def test_sequence_ratio_is_the_mean_over_active_tokens_with_its_gradient() -> None:
    log_probs = torch.tensor([-1.0, -2.0, -3.0, -4.0, math.nan], requires_grad=True)
    mask = torch.tensor([True, False, True, True, False])
    batch = TokenBatch(log_probs, torch.zeros(5), torch.ones(5), mask, [3, 0, 1, 1])
    d = log_ratio("sequence", "rollout", batch)
    assert d.tolist() == [-2.0, 0.0, -2.0, -4.0, 0.0]
    (d * torch.tensor([1.0, 10.0, 2.0, 5.0, 10.0])).sum().backward()
    assert log_probs.grad.tolist() == [1.5, 0.0, 1.5, 5.0, 0.0]


def test_long_responses_lose_no_precision_in_float32() -> None:
    n = 200_000
    d = torch.rand(n, generator=torch.Generator().manual_seed(0)) * 1e-3
    batch = TokenBatch(d, torch.zeros(n), torch.ones(n), torch.ones(n, dtype=torch.bool), [n])
    assert log_ratio("sequence", "rollout", batch)[0].item() == pytest.approx(d.double().mean().item(), rel=1e-7)


def test_threshold_scores_are_detached_and_of_the_methods_ratio() -> None:
    tokens = paper.random_tokens(seed=3, lengths=[4, 2])
    for name, sequence in (("sat-grpo", False), ("sat-gspo", True)):
        score = threshold_scores(named_method(name), tokens.batch())
        d = paper.log_ratios(named_method(name), tokens, tokens.log_mu, sequence)
        assert not score.requires_grad
        assert score.tolist() == pytest.approx([abs(d[t]) for t in tokens.active])


def sequences_with_garbage() -> TokenBatch:
    """Four responses: two active tokens and one not, none at all, one token, one that is not active."""
    mask = torch.tensor([True, False, True, True, False])
    zeros = torch.zeros(5)
    return TokenBatch(zeros, zeros, zeros, mask, [3, 0, 1, 1])


def test_sequence_sum_is_over_the_active_tokens_of_each_response() -> None:
    values = torch.tensor([-1.0, math.nan, -3.0, 4.0, math.inf], requires_grad=True)
    sums = sequence_sum(values, sequences_with_garbage())
    assert sums.tolist() == [-4.0, 0.0, -4.0, 4.0, 0.0]
    assert sums.dtype == torch.float32 and not sums.requires_grad


def test_sequence_max_is_over_the_active_tokens_of_each_response() -> None:
    values = torch.tensor([-1.0, math.nan, -3.0, -4.0, math.inf], requires_grad=True)
    largest = sequence_max(values, sequences_with_garbage())
    assert largest.tolist() == [-1.0, 0.0, -1.0, -4.0, 0.0]
    assert largest.dtype == torch.float32 and not largest.requires_grad


def test_sequence_sum_of_a_long_response_loses_no_precision_in_float32() -> None:
    n = 200_000
    values = torch.rand(n, generator=torch.Generator().manual_seed(0)) * 1e-3
    batch = TokenBatch(values, torch.zeros(n), torch.ones(n), torch.ones(n, dtype=torch.bool), [n])
    assert sequence_sum(values, batch)[0].item() == pytest.approx(values.double().sum().item(), rel=1e-7)
