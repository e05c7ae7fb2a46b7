"""IPO: tokens whose probability has moved far are dropped, and the log-ratio is drawn back to 0 everywhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...metric import DROPPED, Metric
from ...stabilizer import NonNegativeFloat, PolicyTerms, PositiveFloat, Replacement, Row, Style


@dataclass(frozen=True)
class IPO(Replacement):
    """prime-rl's gate on |pi - mu|, and its penalty."""

    eps: PositiveFloat = 0.1
    """Largest |pi - mu| of the sampled token at which its r A counts, whichever way the update leads."""
    kl_tau: NonNegativeFloat = 1e-3
    """Weight of the penalty d^2, which is on dropped tokens too."""

    name = "ipo"
    family = "penalty"
    row = Row(
        "IPO",
        unit="token",
        discriminator="|π − μ|",
        constraint="|π − μ| ≤ ε, and a quadratic penalty",
        weight="{0, 1}",
        direction="symmetric",
        formula="S = M r A − τ d²,  M = 1{|π − μ| ≤ ε}, detached,  r = π / μ,  d = log r",
        source="prime-rl's default loss, with its numbers",
        excludes="SAT (it replaces the clip); a weight π / μ, which it carries itself",
    )
    no_interval = "gate and penalty replace the clip"
    denominators = ("rollout",)
    metrics = (Metric("ipo/masked", "share", "Tokens whose r A IPO drops.", panel=DROPPED),)
    style = Style("vermilion", (0, (1, 1, 4, 1)), "s")

    def values(self, policy: PolicyTerms, batch: BatchView) -> torch.Tensor:
        """1(|pi - mu| <= eps) r A - kl_tau d^2."""
        kept = self._kept(batch).to(policy.d.dtype)
        return kept * policy.ratio * batch.advantages - self.kl_tau * policy.d.square()

    def sums(self, batch: BatchView) -> dict[str, torch.Tensor]:
        """Return the number of tokens that it drops."""
        return {"ipo/masked": (batch.mask & ~self._kept(batch)).sum()}

    def _kept(self, batch: BatchView) -> torch.Tensor:
        with torch.no_grad():
            return (batch.log_pi.exp() - batch.mu).abs() <= self.eps
