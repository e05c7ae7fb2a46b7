"""TIS: truncated importance sampling, a weight against the rollout engine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...metric import WEIGHTS, Metric, Panel
from ...stabilizer import PositiveFloat, Row, Style, Weight


@dataclass(frozen=True)
class TIS(Weight):
    """Truncated importance sampling (Eq. app-tis)."""

    cap: PositiveFloat = 2.0
    """Upper bound C of the weight."""

    name = "tis"
    place = "suffix"
    help = "Truncated importance sampling. `tis: true` turns it on with cap 2."
    switch_help = "Weight each token's loss by min(ratio, cap), detached."
    row = Row(
        "TIS",
        unit="token",
        discriminator="r = π_proximal / μ",
        constraint="one-sided cap",
        weight="min(r, C)",
        direction="one-sided",
        formula="S w,  w = min(π_proximal / μ, C), detached",
        source="Eq. app-tis; C is that of public code",
        needs="rollout log-probs; with SAT also the trainer's log-probs under the generating weights",
        excludes="denominator rollout, and IcePop's weight: π / μ would count twice",
    )
    style = Style("orange", ":")
    metrics = (
        Metric("tis/weight", "ratio", "Mean weight.", panel=WEIGHTS),
        Metric("tis/capped", "share", "Tokens at the cap.", panel=Panel("tokens whose weight is at its cap")),
    )

    @property
    def engine_weight(self) -> str:
        return "TIS"

    def factor(self, batch: BatchView) -> torch.Tensor:
        """min(pi_proximal / mu, cap) (Eq. app-tis)."""
        return batch.engine_ratio.clamp(max=self.cap)

    def sums(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the sum of the weights, and the number of tokens at the cap."""
        return {"tis/weight": weights.sum(), "tis/capped": (weights == self.cap).sum()}
