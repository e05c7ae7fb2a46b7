"""SPO: a quadratic penalty in place of the clip."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import Penalty, PositiveFloat, Row, Style


@dataclass(frozen=True)
class SPO(Penalty):
    """SPO's penalty (Eq. app-spo)."""

    eps: PositiveFloat = 0.2
    """Distance from 1 at which the penalized surrogate has its optimum; PPO's radius."""

    name = "spo"
    row = Row(
        "SPO",
        unit="token",
        discriminator="|r − 1|",
        constraint="soft quadratic penalty",
        weight="1 ∓ |r − 1|/ε",
        direction="asymmetric",
        formula="S = r A − |A| (r − 1)² / (2 ε)",
        source="Eq. app-spo; ε is PPO's",
        excludes="SAT (there is no clip interval to contract); denominator trainer at one step per rollout (r is 1)",
    )
    style = Style("vermilion", (0, (1, 1, 4, 1)), "o")

    def surrogate(self, ratio: torch.Tensor, batch: BatchView) -> torch.Tensor:
        """r A - |A| (r - 1)^2 / (2 eps) (Eq. app-spo)."""
        return ratio * batch.advantages - batch.advantages.abs() / (2 * self.eps) * (ratio - 1).square()
