"""ASPO: the inverse ratio as weight where the advantage is positive, so that tokens that lag behind catch up."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import PositiveFloat, Row, Score, Style


@dataclass(frozen=True)
class ASPO(Score):
    """Asymmetric importance sampling: PPO's mask on a score form, whose weight is 1 / r on one side."""

    eps_low: PositiveFloat = 0.2
    """With a negative advantage ratios below 1 - eps_low are dropped."""
    eps_high: PositiveFloat = 0.2
    """With a positive advantage ratios above 1 + eps_high are dropped."""
    cap: PositiveFloat = 3.0
    """Largest weight. The gradient stays there, which the dual clip takes away."""

    name = "aspo"
    row = Row(
        "ASPO",
        unit="token",
        discriminator="|r − 1|",
        constraint="|r − 1| ≤ ε",
        weight="min(1/r, C), min(r, C) or 0",
        direction="asymmetric",
        formula=(
            "S = w A log π,  w = min(1/r, C) 1{r ≤ 1 + ε_high} where A > 0, min(r, C) 1{r ≥ 1 − ε_low} where A < 0, "
            "detached"
        ),
        source="Archer2.0's public code, with one interval for tokens of high and low entropy",
        excludes="SAT (undefined on an interval of this kind)",
    )
    no_interval = "interval is of another kind, on a weight that falls with the ratio"
    style = Style("purple", "-", "v")

    def weight(self, batch: BatchView) -> torch.Tensor:
        """min(1 / r, cap) up to 1 + eps_high where A > 0; min(r, cap) from 1 - eps_low on where A <= 0; else 0."""
        r = batch.ratio
        up = torch.where(r <= 1 + self.eps_high, (-batch.d).exp().clamp(max=self.cap), 0.0)
        down = torch.where(r >= 1 - self.eps_low, r.clamp(max=self.cap), 0.0)
        return torch.where(batch.advantages > 0, up, down)
