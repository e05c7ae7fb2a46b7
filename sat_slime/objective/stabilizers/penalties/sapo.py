"""SAPO: a sigmoid of the ratio in place of the clip."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import Penalty, PositiveFloat, Row, Style


@dataclass(frozen=True)
class SAPO(Penalty):
    """A soft gate on the ratio, sharper where the advantage is not positive."""

    tau_pos: PositiveFloat = 1.0
    """Steepness of the sigmoid where the advantage is positive."""
    tau_neg: PositiveFloat = 1.05
    """Steepness of the sigmoid elsewhere. Both are the paper's."""

    name = "sapo"
    row = Row(
        "SAPO",
        unit="token",
        discriminator="|r − 1|",
        constraint="smooth decay",
        weight="4 s (1 − s) r",
        direction="symmetric",
        formula="S = A (4/τ) s,  s = sigmoid(τ (r − 1)),  τ = τ_pos where A > 0, else τ_neg",
        source="arXiv 2511.20347",
        excludes="SAT (it replaces the clip)",
    )
    no_interval = "sigmoid replaces the clip"
    no_op_at_ratio_one = ""
    style = Style("vermilion", (0, (1, 1, 4, 1)), "^")

    def surrogate(self, ratio: torch.Tensor, batch: BatchView) -> torch.Tensor:
        """Return A (4 / tau) sigmoid(tau (r - 1)); 2 A / tau at r = 1, where its gradient in log pi is A."""
        tau = torch.full_like(ratio, self.tau_neg).masked_fill(batch.advantages > 0, self.tau_pos)
        return batch.advantages * (4 / tau) * torch.sigmoid(tau * (ratio - 1))
