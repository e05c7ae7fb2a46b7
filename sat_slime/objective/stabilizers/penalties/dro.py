"""DRO: REINFORCE with a quadratic penalty on the log-ratio, also the regularizer of Kimi k1.5."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import PolicyTerms, PositiveFloat, Replacement, Row, Style


@dataclass(frozen=True)
class DRO(Replacement):
    """log pi with a penalty, without a ratio on the advantage."""

    beta: PositiveFloat = 0.1
    """Weight of the penalty. verl has no default; this one is ROLL's."""

    name = "dro"
    family = "penalty"
    no_interval = "penalty replaces the clip"
    no_op_at_ratio_one = "the penalty has no gradient"
    row = Row(
        "DRO",
        unit="token",
        discriminator="d = log r",
        constraint="quadratic penalty",
        weight="1 − β d / A",
        direction="—",
        formula="S = A log π − β d² / 2",
        source="verl's policy loss dro, and arXiv 2501.12599; β is ROLL's",
        excludes="SAT (it replaces the clip); denominator trainer at one step per rollout (d is 0)",
    )
    style = Style("vermilion", (0, (1, 1, 4, 1)), "v")

    def values(self, policy: PolicyTerms, batch: BatchView) -> torch.Tensor:
        """Return A log pi - beta d^2 / 2."""
        return batch.advantages * policy.log_pi - self.beta / 2 * policy.d.square()
