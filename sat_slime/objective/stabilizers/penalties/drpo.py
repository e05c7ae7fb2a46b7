"""DRPO: a quadratic penalty in place of the clip, weighted by mu."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import Penalty, PositiveFloat, Row, Style


@dataclass(frozen=True)
class DRPO(Penalty):
    """DRPO's penalty (Eq. app-drpo)."""

    delta: PositiveFloat = 12.5
    """Divisor of the penalty; the larger, the weaker. The paper has none; this one is of DRPO's public code."""

    name = "drpo"
    row = Row(
        "DRPO",
        unit="token",
        discriminator="D_TV = |π − μ|",
        constraint="soft quadratic penalty",
        weight="[1 − 1/δ, 1 + 1/δ]",
        direction="asymmetric",
        formula="S = r A − |A| μ (r − 1)² / (2 δ)",
        source="Eq. app-drpo; δ is that of DRPO's public code",
        excludes="SAT (there is no clip interval to contract); denominator trainer at one step per rollout (r is 1)",
    )
    style = Style("vermilion", (0, (1, 1, 4, 1)), "D")

    def surrogate(self, ratio: torch.Tensor, batch: BatchView) -> torch.Tensor:
        """r A - |A| mu (r - 1)^2 / (2 delta) (Eq. app-drpo)."""
        advantages = batch.advantages
        return ratio * advantages - advantages.abs() / (2 * self.delta) * batch.mu * (ratio - 1).square()
