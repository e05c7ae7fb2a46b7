"""CPGD: the log-prob itself is clipped, so that no gradient is multiplied by a ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Lt

from ...batch_view import BatchView
from ...metric import Metric, Panel
from ...stabilizer import PolicyTerms, Replacement, Row, Style


@dataclass(frozen=True)
class CPGD(Replacement):
    """PPO's mask on log pi, without the penalty of the paper, which public code does not have."""

    eps: Annotated[float, Gt(0), Lt(1)] = 0.2
    """Radius of PPO's interval for the ratio."""

    name = "cpgd"
    family = "clip"
    no_interval = "interval is of another kind, on log π"
    row = Row(
        "CPGD",
        unit="token",
        discriminator="|r − 1|",
        constraint="|r − 1| ≤ ε",
        weight="{0, 1}, without r",
        direction="asymmetric",
        formula=(
            "S = A min(log π, log π_den + log(1 + ε)) where A > 0, A max(log π, log π_den + log(1 − ε)) elsewhere,  "
            "π_den the denominator"
        ),
        source="arXiv 2505.12504, as LightRFT has it",
        excludes="SAT (undefined on an interval of this kind)",
    )
    metrics = (
        Metric(
            "cpgd/held",
            "share",
            "Tokens that CPGD holds at the end of its interval.",
            panel=Panel("tokens held at the end of their interval"),
        ),
    )
    style = Style("black", "-", "h")

    def values(self, policy: PolicyTerms, batch: BatchView) -> torch.Tensor:
        """Return A log pi inside the interval, a constant beyond it."""
        log_denominator = (policy.log_pi - policy.d).detach()
        up, down = policy.d.clamp(max=math.log1p(self.eps)), policy.d.clamp(min=math.log1p(-self.eps))
        return batch.advantages * (log_denominator + torch.where(batch.advantages > 0, up, down))

    def sums(self, batch: BatchView) -> dict[str, torch.Tensor]:
        """Return the number of tokens that are held."""
        upper = (batch.advantages > 0) & (batch.d > math.log1p(self.eps))
        lower = (batch.advantages < 0) & (batch.d < math.log1p(-self.eps))
        return {"cpgd/held": (batch.mask & (upper | lower)).sum()}
