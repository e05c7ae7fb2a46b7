"""Rollout IS: importance sampling inside a narrow range of the ratio, nothing outside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import PositiveFloat, Row, Score, Style


@dataclass(frozen=True)
class RolloutIS(Score):
    """Importance sampling on a score form, for ratios close to 1 alone."""

    eps_low: PositiveFloat = 0.2
    """Ratios at or below 1 - eps_low are dropped."""
    eps_high: PositiveFloat = 0.2
    """Ratios at or above 1 + eps_high are dropped. Both are SkyRL's."""

    name = "rollout-is"
    key = "rollout_is"
    label = "Rollout-IS"
    row = Row(
        "Rollout IS",
        unit="token",
        discriminator="r = π / μ",
        constraint="symmetric range gate",
        weight="r in range, else 0",
        direction="symmetric",
        formula="S = w A log π,  w = r 1{1 − ε_low < r < 1 + ε_high}, detached",
        source="SkyRL's policy loss rollout_is, with its defaults",
        excludes="SAT (a score form has no interval); a weight π / μ, which it carries itself",
    )
    denominators = ("rollout",)
    style = Style("purple", "-", "D")

    def weight(self, batch: BatchView) -> torch.Tensor:
        """r where 1 - eps_low < r < 1 + eps_high, else 0."""
        inside = (batch.ratio > 1 - self.eps_low) & (batch.ratio < 1 + self.eps_high)
        return torch.where(inside, batch.ratio, 0.0)
