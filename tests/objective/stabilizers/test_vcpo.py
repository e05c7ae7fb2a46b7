from __future__ import annotations

import math

import pytest
import torch

from sat_slime.objective.stabilizers.runtime.vcpo import VCPO


def by_definition(log_weights: list[float], base: float, form: str) -> float:
    weights = [math.exp(x) for x in log_weights]
    ess = sum(weights) ** 2 / (sum(w * w for w in weights) + 1e-8)
    share = min(1.0, ess / len(weights) / base)
    return math.sqrt(share) if form == "sqrt" else share


@pytest.mark.parametrize("form", ["sqrt", "linear"])
@pytest.mark.parametrize("base", [1.0, 0.5])
@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 3.0])
def test_the_scale_is_the_equation(spread: float, base: float, form: str) -> None:
    log_weights = spread * torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scale = VCPO(base, form).scale(log_weights)
    assert scale["vcpo/scale"] == pytest.approx(by_definition(log_weights.tolist(), base, form), rel=1e-6)
    assert scale["vcpo/ess"] == pytest.approx(by_definition(log_weights.tolist(), 1.0, "linear"), rel=1e-6)


def test_known_scales() -> None:
    assert VCPO().scale(torch.zeros(5)) == {"vcpo/scale": 1.0, "vcpo/ess": 1.0}
    alone = VCPO().scale(torch.tensor([0.0, -1000.0, -1000.0, -1000.0]))
    assert alone["vcpo/scale"] == pytest.approx(0.5) and alone["vcpo/ess"] == pytest.approx(0.25)
    assert VCPO().scale(torch.zeros(0))["vcpo/scale"] == 1.0


def test_long_responses_neither_overflow_nor_vanish() -> None:
    for shift in (-5000.0, 5000.0):
        scale = VCPO().scale(torch.tensor([shift, shift + math.log(2)], dtype=torch.float64))["vcpo/scale"]
        assert scale == pytest.approx(math.sqrt(9 / 5 / 2), rel=1e-9)


def test_products_that_are_all_zero_leave_the_learning_rate_as_it_is() -> None:
    assert VCPO().scale(torch.tensor([-math.inf, -math.inf])) == {"vcpo/scale": 1.0, "vcpo/ess": 1.0}
