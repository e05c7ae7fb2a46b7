from __future__ import annotations

import math

import pytest
import torch

from sat_slime.objective import DRPO, SPO, TIS, BatchView, TokenBatch
from sat_slime.objective.stabilizers.penalties.sapo import SAPO


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
