"""OPSM: drops the bad responses that the policy has moved away from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import Gate, PositiveFloat, Row, Style


@dataclass(frozen=True)
class OPSM(Gate):
    """DeepSeek-V3.2's off-policy sequence mask."""

    delta: PositiveFloat = 1e-4
    """Largest mean of log mu - log pi over the response at which it is kept, in nats. slime's, and small:
    Trinity-RFT finds 0.05 to 0.2 reasonable, TRL's documentation has 0.5. The paper has no number."""

    name = "opsm"
    key = "opsm"
    place = "suffix"
    label = "OPSM"
    help = "Off-policy sequence masking."
    switch_help = "Drop bad responses that the policy has moved away from."
    row = Row(
        "OPSM",
        unit="sequence",
        discriminator="mean log(μ / π)",
        constraint="A ≥ 0, or mean ≤ δ",
        weight="{0, 1}",
        direction="one-sided",
        formula="S M,  M = 0 where A < 0 and the mean over the response of log(μ / π) is above δ, else 1",
        source="arXiv 2512.02556, eq. 9; δ is slime's",
    )
    style = Style("sky", (0, (3, 1, 1, 1)))

    def factor(self, batch: BatchView) -> torch.Tensor:
        """0 where A < 0 and the response's mean log(mu / pi) is above delta, else 1. pi is the policy in training."""
        away = batch.sequence_mean(batch.log_mu - batch.log_pi)
        return 1.0 - ((batch.advantages < 0) & (away > self.delta)).to(away.dtype)
