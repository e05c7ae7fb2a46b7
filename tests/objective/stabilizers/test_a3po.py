from __future__ import annotations

import math

import paper_equations as paper
import pytest
import torch

from sat_slime.objective import TokenBatch, named_method, policy_surrogate, supply_proximal
from sat_slime.objective.stabilizers.runtime.a3po import A3PO


def test_the_denominator_moves_with_the_lag() -> None:
    log_pi, log_mu = torch.full((5,), math.log(0.6)), torch.full((5,), math.log(0.5))
    lags = torch.tensor([0.0, 1.0, 2.0, 4.0, 1000.0])
    shares = (A3PO().log_probs(log_pi, log_mu, lags) - log_mu) / math.log(1.2)
    assert shares.tolist() == pytest.approx([0, 0, 0.5, 0.75, 0.999], abs=1e-5)


def test_ratio_and_weight_of_the_note() -> None:
    # At lag 4 a ratio of 1.2 over mu is 1.2^0.25 over the denominator, and 1.2^0.75 remains for the weight.
    mu = torch.tensor([0.5, 0.5, 0.5], dtype=torch.float64).log()
    log_probs = (mu + math.log(1.2)).requires_grad_()
    ones = torch.ones(3, dtype=torch.float64)
    batch = TokenBatch(log_probs, mu, ones, ones.bool(), [3], lags=torch.tensor([4.0, 1.0, 0.0]).double())
    values = policy_surrogate(named_method("grpo-decoupled-a3po"), batch).values
    values.sum().backward()
    assert values.tolist() == pytest.approx([1.2, 1.2, 1.2])
    assert log_probs.grad.tolist() == pytest.approx([1.2, 1.2, 1.2])
    supplied = supply_proximal(named_method("grpo-a3po"), batch).proximal_log_probs
    assert (log_probs.detach() - supplied).exp().tolist() == pytest.approx([1.0466, 1.2, 1.2], abs=5e-5)
    assert (supplied - mu).exp().tolist() == pytest.approx([1.1465, 1, 1], abs=5e-5)
    assert not supplied.requires_grad


@pytest.mark.parametrize("beside", ["", "-decoupled", "-tis"])
@pytest.mark.parametrize("lag", [0.0, 1.0])
def test_at_lag_0_and_1_it_is_the_plain_clip_over_mu(lag: float, beside: str) -> None:
    tokens = paper.random_tokens(seed=5, lengths=[5, 1, 9], spread=0.5)
    tokens.lags = [lag] * 15
    ours, plain = tokens.batch(), tokens.batch()
    surrogate = policy_surrogate(named_method(f"grpo{beside}-a3po"), ours)
    expected = policy_surrogate(named_method("grpo"), plain)
    surrogate.values.sum().backward()
    expected.values.sum().backward()
    assert torch.equal(surrogate.values, expected.values) and torch.equal(ours.log_probs.grad, plain.log_probs.grad)


def test_what_the_batch_holds_of_the_trainer_is_not_read() -> None:
    tokens = paper.random_tokens(seed=5, lengths=[5, 1, 9], spread=0.5)
    one = policy_surrogate(named_method("grpo-decoupled-a3po"), tokens.batch()).values
    tokens.log_proximal = None
    assert torch.equal(one, policy_surrogate(named_method("grpo-decoupled-a3po"), tokens.batch()).values)
