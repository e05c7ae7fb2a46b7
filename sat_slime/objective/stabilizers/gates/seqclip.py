"""SeqClip: a gate on the sequence ratio to the engine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import Gate, PositiveFloat, Row, Style, around_one


@dataclass(frozen=True)
class SeqClip(Gate):
    """SeqClip's gate on the sequence ratio to mu (Eq. app-seqclip)."""

    low: PositiveFloat = 0.8
    """Smallest ratio at which a response is kept."""
    high: PositiveFloat = 1.25
    """Largest ratio at which a response is kept. The paper has no bounds; these are GSPO's interval, made symmetric in
    the logarithm."""

    name = "seqclip"
    ratio = "sequence"
    row = Row(
        "SeqClip",
        unit="sequence",
        discriminator="ρ",
        constraint="low ≤ ρ ≤ high",
        weight="{0, 1}",
        direction="symmetric",
        formula="S M,  M = 1{low ≤ ρ ≤ high},  ρ = exp(mean over the response of log π − log μ)",
        source="Eq. app-seqclip; the range is our choice, GSPO's interval made symmetric in the logarithm",
    )
    style = Style("sky", (0, (6, 1)), "s")

    def __post_init__(self) -> None:
        around_one(self.low, self.high)

    def factor(self, batch: BatchView) -> torch.Tensor:
        """1 where the response's ratio pi / mu, length-normalized, is in [low, high] (Eq. app-seqclip)."""
        rho = batch.sequence_mean(batch.log_pi - batch.log_mu).exp()
        return ((rho >= self.low) & (rho <= self.high)).to(rho.dtype)
