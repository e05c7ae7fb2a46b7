"""FlashREINFORCE: importance sampling without a cap, for responses whose mean divergence is small."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import PositiveFloat, Row, Score, Style
from ..gates.kpop import bernoulli_kl

LEAST_PROBABILITY = 1e-6
"""For the statistic, probabilities are held inside [this, 1 - this]."""


@dataclass(frozen=True)
class Flash(Score):
    """FlashREINFORCE's gate on responses and its weight."""

    delta: PositiveFloat = 5e-3
    """Largest mean of KL(Bernoulli(mu) || Bernoulli(pi)) over the response at which it is kept, in nats. That of its
    R1-distill recipe, OpenRLHF and molt; the function's own default is 3e-3."""

    name = "flash"
    label = "Flash"
    row = Row(
        "FlashREINFORCE",
        unit="sequence",
        discriminator="mean Bernoulli KL(μ‖π)",
        constraint="mean KL ≤ δ",
        weight="r or 0",
        direction="symmetric",
        formula=(
            "S = w A log π,  w = r 1{mean over the response of KL(Bernoulli(μ)‖Bernoulli(π)) ≤ δ}, detached,  r = π / μ"
        ),
        source="public code of FlashREINFORCE, without its advantage and its sampling",
        excludes="SAT (a score form has no interval); a weight π / μ, which it carries itself",
    )
    denominators = ("rollout",)
    style = Style("purple", "-", "s")

    def weight(self, batch: BatchView) -> torch.Tensor:
        """r where the response's mean KL is at most delta, else 0."""
        low, high = math.log(LEAST_PROBABILITY), math.log1p(-LEAST_PROBABILITY)
        divergence = bernoulli_kl(batch.log_mu.clamp(low, high), batch.log_pi.clamp(low, high))
        return torch.where(batch.sequence_mean(divergence) <= self.delta, batch.ratio, 0.0)
