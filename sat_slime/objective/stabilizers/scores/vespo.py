"""VESPO: a smooth weight of the product of a response's ratios."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import PositiveFloat, Row, Score, Style

LOG_PRODUCT = (math.log(1e-8), 20.0)
"""The logarithm of the product is held inside this range."""


@dataclass(frozen=True)
class VESPO(Score):
    """phi(W) = W^k e^(lambda (1 - W)) of the product W of the ratios: 1 at W = 1, largest at k / lambda."""

    k_pos: PositiveFloat = 2.0
    """Exponent where the response's advantage is not negative."""
    lambda_pos: PositiveFloat = 3.0
    """Rate of the decay there."""
    k_neg: PositiveFloat = 3.0
    """Exponent where the response's advantage is negative."""
    lambda_neg: PositiveFloat = 2.0
    """Rate of the decay there. All four are those of its public code and run scripts."""

    name = "vespo"
    row = Row(
        "VESPO",
        unit="sequence",
        discriminator="W = Π r",
        constraint="smooth, soft in W",
        weight="W^k e^(λ (1 − W))",
        direction="symmetric",
        formula="S = φ A log π,  φ = W^k e^(λ (1 − W)), detached,  W the product of the response's r = π / μ",
        source="arXiv 2602.10693 and its public code",
        excludes="SAT (a score form has no interval); a weight π / μ, which it carries itself",
    )
    denominators = ("rollout",)
    style = Style("purple", "-", "P")

    def weight(self, batch: BatchView) -> torch.Tensor:
        """phi(W), by the sign of the response's mean advantage."""
        log_w = batch.sequence_sum(batch.d).clamp(*LOG_PRODUCT)
        bad = batch.sequence_mean(batch.advantages) < 0
        k = torch.full_like(log_w, self.k_pos).masked_fill(bad, self.k_neg)
        rate = torch.full_like(log_w, self.lambda_pos).masked_fill(bad, self.lambda_neg)
        return (k * log_w + rate * (1 - log_w.exp())).exp()
