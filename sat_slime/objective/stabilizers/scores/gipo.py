"""GIPO: each token's ratio is damped by a Gaussian of its logarithm, so that no gradient vanishes at an edge."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import PositiveFloat, Row, Score, Style


@dataclass(frozen=True)
class GIPO(Score):
    """Gaussian importance sampling weights, in place of the clip."""

    sigma: PositiveFloat = 1.0
    """Width of the Gaussian in log r. 1 is that of public code, whose authors also ran 0.1 to 2."""

    name = "gipo"
    row = Row(
        "GIPO",
        unit="token",
        discriminator="d = log r",
        constraint="—",
        weight="r e^(−d² / 2σ²)",
        direction="symmetric",
        formula="S = w A log π,  w = r exp(−d² / (2 σ²)), detached: the gradient of r A times that Gaussian",
        source="arXiv 2603.03955; the form and σ are of public code, which AcceRL's authors and others share",
        excludes="SAT (a score form has no interval)",
    )
    style = Style("purple", (0, (3, 1, 1, 1)), "^")

    def weight(self, batch: BatchView) -> torch.Tensor:
        """Return r exp(-d^2 / (2 sigma^2)), which is 0 where d is huge."""
        return (batch.d - (batch.d / self.sigma).square() / 2).exp()
