from __future__ import annotations

import math

import pytest
import torch
from methods_under_test import at
from views import make_batch

from sat_slime.objective import DRPO, SPO, TIS, BatchView, TokenBatch, policy_surrogate
from sat_slime.objective.stabilizers.penalties.sapo import SAPO


def slopes(name: str, pi: list[float], mu: list[float], advantages: list[float], **settings: float) -> list[float]:
    """Gradient of the sum of S in log pi, each token a response."""
    batch = make_batch(pi, mu, advantages, [1] * len(pi))
    batch.log_probs.requires_grad_()
    policy_surrogate(at(name, **settings), batch).values.sum().backward()
    return batch.log_probs.grad.tolist()


def view_of(pi: torch.Tensor, mu: torch.Tensor, advantages: torch.Tensor) -> BatchView:
    """The view of one response. d is 0 in it, since no penalty reads d."""
    mask = torch.ones(len(mu), dtype=torch.bool)
    batch = TokenBatch(pi.log(), mu.log(), advantages, mask, [len(mu)])
    return BatchView(batch, "rollout", torch.zeros_like(mu), advantages)


def test_spo_is_stationary_on_ppos_boundary() -> None:
    ratio = torch.tensor([1.2, 0.8, 1.0], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([2.0, -2.0, 2.0], dtype=torch.float64)
    mu = torch.ones(3, dtype=torch.float64)
    values = SPO(eps=0.2).surrogate(ratio, view_of(mu, mu, advantages))
    assert values.tolist() == pytest.approx([2.4 - 0.2, -1.6 - 0.2, 2.0])
    values.sum().backward()
    assert ratio.grad.tolist() == pytest.approx([0.0, 0.0, 2.0])


def test_drpo_weighs_the_penalty_by_mu() -> None:
    ratio = torch.tensor([1.5, 1.5], dtype=torch.float64, requires_grad=True)
    mu = torch.tensor([0.5, 1.0])
    values = DRPO(delta=0.5).surrogate(ratio, view_of(mu, mu, torch.tensor([1.0, -1.0])))
    assert values.tolist() == pytest.approx([1.5 - 0.125, -1.5 - 0.25])
    values.sum().backward()
    assert ratio.grad.tolist() == pytest.approx([0.5, -2.0])


def test_tis_caps_one_side() -> None:
    ratios = torch.tensor([0.01, 1.0, 2.0, 2.5, float("inf")])
    view = view_of(ratios, torch.ones(5), torch.ones(5))
    assert TIS(cap=2.0).factor(view).tolist() == pytest.approx([0.01, 1.0, 2.0, 2.0, 2.0])


def test_sapo_reads_its_settings_in_the_precision_of_the_batch() -> None:
    ratio = torch.tensor([1.7], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    value = SAPO(tau_neg=1.05).surrogate(ratio, view_of(one, one, -one))
    assert value.item() == pytest.approx(-4 / 1.05 / (1 + math.exp(-1.05 * 0.7)), rel=1e-14)


def test_sapo_has_ppos_slope_at_ratio_one_and_little_far_away() -> None:
    pi, mu = [0.5, 0.5, 0.9, 0.9, 0.01], [0.5, 0.5, 0.05, 0.05, 0.5]
    up, down, far_up, far_down, gone = slopes("sapo", pi, mu, [2.0, -3.0, 1.0, -1.0, 1.0])
    assert (up, down) == pytest.approx((2, -3))
    assert 0 < far_up < 1e-5 and -1e-5 < far_down < 0 and abs(far_down) < far_up, "it is sharper below 0"
    assert gone == pytest.approx(0.02 * 4 * 0.27292 * 0.72708, rel=1e-3), "the sigmoid of -0.98"


def test_sapo_has_a_steepness_for_each_sign() -> None:
    values = policy_surrogate(at("sapo"), make_batch([0.5] * 2, [0.5] * 2, [1.0, -1.0], [2])).values
    assert values.tolist() == pytest.approx([2 / 1.0, -2 / 1.05])


def test_ipo_drops_by_the_probability_in_either_direction_and_draws_back_everywhere() -> None:
    # |pi - mu| is 0.1 - 1e-9, 0.11, 0.11, 0.3.
    pi, mu = [0.5999999999, 0.61, 0.39, 0.8], [0.5, 0.5, 0.5, 0.5]
    expected = [x - 2e-3 * math.log(p / m) for x, p, m in zip([1.2, 0, 0, 0], pi, mu, strict=True)]
    assert slopes("ipo", pi, mu, [1.0, 1.0, 1.0, 0.0]) == pytest.approx(expected)
    assert slopes("ipo", pi, mu, [1.0, 1.0, 1.0, 0.0], kl_tau=0.0) == pytest.approx([1.2, 0, 0, 0])


def test_dro_pulls_back_without_advantage() -> None:
    pi, mu = [0.6, 0.4, 0.5], [0.5, 0.5, 0.5]
    expected = [-0.2 * math.log(1.2), -0.2 * math.log(0.8), -1.5]
    assert slopes("dro", pi, mu, [0.0, 0.0, -1.5], beta=0.2) == pytest.approx(expected)
