from __future__ import annotations

import pytest
import torch

from sat_slime.objective import DRPO, SPO, TIS
from sat_slime.objective.penalties import drpo, spo
from sat_slime.objective.weights import tis_weight


def test_spo_is_stationary_on_ppos_boundary() -> None:
    ratio = torch.tensor([1.2, 0.8, 1.0], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([2.0, -2.0, 2.0], dtype=torch.float64)
    values = spo(SPO(eps=0.2), ratio, advantages, torch.ones(3))
    assert values.tolist() == pytest.approx([2.4 - 0.2, -1.6 - 0.2, 2.0])
    values.sum().backward()
    assert ratio.grad.tolist() == pytest.approx([0.0, 0.0, 2.0])


def test_drpo_weighs_the_penalty_by_mu() -> None:
    ratio = torch.tensor([1.5, 1.5], dtype=torch.float64, requires_grad=True)
    values = drpo(DRPO(delta=0.5), ratio, torch.tensor([1.0, -1.0]), torch.tensor([0.5, 1.0]))
    assert values.tolist() == pytest.approx([1.5 - 0.125, -1.5 - 0.25])
    values.sum().backward()
    assert ratio.grad.tolist() == pytest.approx([0.5, -2.0])


def test_tis_caps_one_side() -> None:
    ratios = torch.tensor([0.01, 1.0, 2.0, 2.5, float("inf")])
    assert tis_weight(TIS(cap=2.0), ratios.log()).tolist() == pytest.approx([0.01, 1.0, 2.0, 2.0, 2.0])
