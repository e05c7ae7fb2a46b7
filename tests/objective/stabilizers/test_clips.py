from __future__ import annotations

import math

import pytest
from methods_under_test import at
from views import make_batch

from sat_slime.objective import TokenBatch, named_method, policy_surrogate


def slopes(batch: TokenBatch, name: str, **settings: float) -> list[float]:
    batch.log_probs.requires_grad_().grad = None
    policy_surrogate(at(name, **settings), batch).values.sum().backward()
    return batch.log_probs.grad.tolist()


def test_gmpo_holds_each_token_on_its_outward_side() -> None:
    # d is 1, -1, 0.1, so that A > 0 holds the first at 0.4 and A < 0 the second at -0.4.
    pi, mu = [0.2 * math.e, 0.2, 0.2 * math.exp(0.1)], [0.2, 0.2 * math.e, 0.2]
    up, down = math.exp((0.4 - 1 + 0.1) / 3), math.exp((1 - 0.4 + 0.1) / 3)
    for advantage, rho, expected in ((1.0, up, [0, up, up]), (-1.0, down, [-down, 0, -down])):
        batch = make_batch(pi, mu, [advantage] * 3, [3])
        assert policy_surrogate(at("gmpo"), batch).values.tolist() == pytest.approx([advantage * rho] * 3)
        assert slopes(batch, "gmpo") == pytest.approx(expected)
        held = policy_surrogate(at("gmpo"), batch).metrics["gmpo/held"].item()
        assert held == pytest.approx(1 / 3)


def test_gmpo_inside_its_interval_is_gspo_without_a_clip() -> None:
    batch = make_batch([0.5, 0.45, 0.5, 0.3], [0.45, 0.5, 0.45, 0.31], [1.0, 1.0, -2.0, -2.0], [2, 2])
    values = policy_surrogate(at("gmpo"), batch).values
    assert values.tolist() == pytest.approx(policy_surrogate(named_method("gspo"), batch).values.tolist())


def test_cpgd_is_a_clip_without_the_ratio() -> None:
    # The ratios are 1.3, 1.3, 0.7, 0.7, 1.1.
    batch = make_batch([0.65, 0.65, 0.35, 0.35, 0.55], [0.5] * 5, [2.0, -2.0, 2.0, -2.0, 0.0], [5])
    assert slopes(batch, "cpgd") == pytest.approx([0, -2, 2, 0, 0])
    surrogate = policy_surrogate(at("cpgd"), batch)
    assert surrogate.values[0].item() == pytest.approx(2 * math.log(0.5 * 1.2))
    assert surrogate.values[3].item() == pytest.approx(-2 * math.log(0.5 * 0.8))
    assert surrogate.metrics["cpgd/held"].item() == pytest.approx(2 / 5)
    assert slopes(batch, "cpgd", eps=0.4) == pytest.approx([2, -2, 2, -2, 0])
