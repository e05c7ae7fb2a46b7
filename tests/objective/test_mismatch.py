from __future__ import annotations

import math

import pytest
import torch

from sat_slime.objective import mismatch_metrics


def test_mismatch_of_known_tokens() -> None:
    d = torch.tensor([0.0, 0.1, -0.2, 0.4, 9.9], dtype=torch.float64)
    mask = torch.tensor([True, True, True, True, False])
    mu = torch.full_like(d, -1.0)
    metrics = mismatch_metrics(mu + d, mu, mask, checkpoint_log_probs=mu + 0.1)
    w = [math.exp(x) for x in (0.0, 0.1, -0.2, 0.4)]
    assert metrics == pytest.approx(
        {
            "mismatch/d_pi": 0.175,
            "mismatch/k3_kl": sum(math.exp(x) - 1 - x for x in (0.0, 0.1, -0.2, 0.4)) / 4,
            "mismatch/q50": 0.1,
            "mismatch/q90": 0.4,
            "mismatch/q99": 0.4,
            "mismatch/max": 0.4,
            "mismatch/ess": sum(w) ** 2 / (4 * sum(x * x for x in w)),
            "mismatch/policy": (0.1 + 0.0 + 0.3 + 0.3) / 4,
            "mismatch/implementation": 0.1,
            "mismatch/policy_of_mean": (0.0 + 0.3 + 0.3) / 0.7,  # the second token has no policy part
        }
    )
    one = mismatch_metrics((mu + d)[1:2], mu[1:2], mask[1:2], checkpoint_log_probs=mu[1:2])
    assert one["mismatch/d_pi"] == one["mismatch/policy"] == pytest.approx(0.1)
    assert one["mismatch/k3_kl"] == pytest.approx(math.expm1(0.1) - 0.1) and one["mismatch/implementation"] == 0
    plain = mismatch_metrics(mu + d, mu, mask)
    assert plain == {name: value for name, value in metrics.items() if name in plain} and len(plain) == 7


def test_the_policy_parts_share_of_the_tail_is_that_by_hand() -> None:
    generator = torch.Generator().manual_seed(0)
    mu, pi_l = (-torch.rand(1000, generator=generator) for _ in range(2))
    pi = pi_l + 0.3 * torch.randn(1000, generator=generator)
    metrics = mismatch_metrics(pi, mu, torch.ones(1000, dtype=torch.bool), checkpoint_log_probs=pi_l)
    rows = sorted(
        (abs(a - m), (a - b) * math.copysign(1, a - m))
        for a, b, m in zip(pi.double().tolist(), pi_l.double().tolist(), mu.double().tolist(), strict=True)
    )
    for name, tail in {"mean": rows, "q90": rows[900:], "q99": rows[990:]}.items():
        share = sum(part for _, part in tail) / sum(size for size, _ in tail)
        assert metrics[f"mismatch/policy_of_{name}"] == pytest.approx(share), name
    assert [metrics[f"mismatch/{name}"] for name in ("q50", "q90", "q99")] == [rows[n - 1][0] for n in (500, 900, 990)]


@pytest.mark.parametrize(("d", "ess"), [([0.0] * 10, 1.0), ([400.0] * 10, 1.0), ([0.0] * 9 + [500.0], 0.1)])
def test_effective_sample_size_is_stable_and_one_without_mismatch(d, ess) -> None:
    metrics = mismatch_metrics(torch.tensor(d), torch.zeros(10), torch.ones(10, dtype=torch.bool))
    assert metrics["mismatch/ess"] == pytest.approx(ess)


def test_nan_is_told_and_named():
    with pytest.raises(ValueError, match="1 of 3 log-ratios are NaN"):
        mismatch_metrics(torch.tensor([0.0, float("nan"), 1.0]), torch.zeros(3), torch.ones(3, dtype=torch.bool))
