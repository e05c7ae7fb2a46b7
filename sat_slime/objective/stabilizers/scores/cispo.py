"""CISPO: the clipped ratio as a weight, so that no token loses its gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import PositiveFloat, Row, Score, Style


@dataclass(frozen=True)
class CISPO(Score):
    """Clipped importance sampling weights on a score form."""

    eps_low: PositiveFloat = 1.0
    """The weight is at least 1 - eps_low; 1 is no lower end."""
    eps_high: PositiveFloat = 4.0
    """The weight is at most 1 + eps_high. 5 in all is SkyRL's, after ScaleRL, and what AReaL advises. TRL calls the cap
    itself epsilon_high."""

    name = "cispo"
    row = Row(
        "CISPO",
        unit="token",
        discriminator="r",
        constraint="r capped",
        weight="clip(r)",
        direction="—",
        formula="S = w A log π,  w = clip(r, 1 − ε_low, 1 + ε_high), detached",
        source="arXiv 2506.13585 and 2510.13786; the cap is SkyRL's",
        excludes="SAT (a score form has no interval); at denominator trainer and one step per rollout it is REINFORCE",
    )
    style = Style("purple", "-", "o")

    def weight(self, batch: BatchView) -> torch.Tensor:
        """clip(r, 1 - eps_low, 1 + eps_high)."""
        return batch.ratio.clamp(1 - self.eps_low, 1 + self.eps_high)
