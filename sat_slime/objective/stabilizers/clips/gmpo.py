"""GMPO: the geometric mean of a response's ratios, each held on its outward side."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...metric import Metric, Panel
from ...ratio import bounded_ratio
from ...stabilizer import PolicyTerms, PositiveFloat, Replacement, Row, Style


@dataclass(frozen=True)
class GMPO(Replacement):
    """The sequence ratio of tokens that are clipped one by one."""

    eps_low: PositiveFloat = 0.4
    """Below, |d| counts no more than this where the advantage is negative: it is in the logarithm."""
    eps_high: PositiveFloat = 0.4
    """Above, d counts no more than this where the advantage is positive. Both are those of verl's recipe: a ratio of
    0.67 to 1.49."""

    name = "gmpo"
    family = "clip"
    no_interval = "interval is of another kind, in the logarithm of each ratio in a mean"
    row = Row(
        "GMPO",
        unit="sequence of tokens",
        discriminator="d = log r",
        constraint="−ε_low ≤ d or d ≤ ε_high, outward",
        weight="{0, 1} times the mean's",
        direction="asymmetric",
        formula=(
            "S = Ā exp(mean over the response of c),  c = min(d, ε_high) where A > 0, max(d, −ε_low) where A < 0,  "
            "Ā the response's mean A"
        ),
        source="arXiv 2507.20673; ε is that of verl's recipe",
        excludes="SAT (undefined on an interval of this kind)",
    )
    metrics = (
        Metric(
            "gmpo/held",
            "share",
            "Tokens that GMPO holds at the end of its interval.",
            panel=Panel("tokens held at the end of their interval"),
        ),
    )
    style = Style("black", "-", "p")

    def values(self, policy: PolicyTerms, batch: BatchView) -> torch.Tensor:
        """Return A exp(mean c), at every token of the response; a token beyond its end adds a constant to the mean."""
        up, down = policy.d.clamp(max=self.eps_high), policy.d.clamp(min=-self.eps_low)
        held = torch.where(batch.advantages > 0, up, torch.where(batch.advantages < 0, down, 0.0))
        return batch.sequence_mean(batch.advantages) * bounded_ratio(batch.sequence_mean(held))

    def sums(self, batch: BatchView) -> dict[str, torch.Tensor]:
        """Return the number of tokens that are held."""
        upper = (batch.advantages > 0) & (batch.d > self.eps_high)
        lower = (batch.advantages < 0) & (batch.d < -self.eps_low)
        return {"gmpo/held": (batch.mask & (upper | lower)).sum()}
