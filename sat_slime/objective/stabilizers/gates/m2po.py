"""M2PO: the outward tokens with the largest squared log-ratios of the whole batch are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ...batch_view import BatchView
from ...metric import Metric, Panel
from ...quantile import longest_prefix_end
from ...stabilizer import Gate, Judge, PositiveFloat, Row, Scope, Style


@dataclass(frozen=True)
class M2PO(Gate, Judge):
    """A bound on the second moment of the outward log-ratios, in place of the clip."""

    threshold: PositiveFloat = 0.04
    """Largest mean of d^2 over the outward tokens that are kept (the paper's tau)."""
    scope: Scope = "step"
    """Tokens that are sorted together: the whole optimizer step on all ranks (the paper), or one micro-batch."""

    name = "m2po"
    no_interval = "gate replaces the clip"
    row = Row(
        "M2PO",
        unit="batch",
        discriminator="d² of outward tokens",
        constraint="mean d² ≤ τ",
        weight="{0, 1}",
        direction="asymmetric",
        formula=(
            "S = M r A,  M = 0 for the outward tokens (A d > 0) with the largest d² of the step, until the mean d² of "
            "the others is ≤ τ; else 1,  r = π / μ"
        ),
        source="arXiv 2510.01161, Algorithm 1; tokens of equal d² are kept together or not at all",
        excludes="SAT and clips, which it replaces; a weight π / μ, which it carries itself",
    )
    denominators = ("rollout",)
    style = Style("sky", (0, (6, 1)), "*")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "m2po/largest",
            "nats²",
            "The largest d² of an outward token that is kept.",
            "max",
            panel=Panel("largest d² of an outward token that is kept"),
        ),
    )

    def scores(self, batch: BatchView) -> torch.Tensor:
        """Return the (n,) d^2 of the outward tokens, and whatever is NaN, so that the threshold tells it."""
        return self.squares(batch)[_outward(batch) | batch.d.isnan()]

    def squares(self, batch: BatchView) -> torch.Tensor:
        """Return the (N,) d^2 by which tokens are ranked."""
        return batch.d.square()

    def threshold_of(self, scores: torch.Tensor, group: torch.distributed.ProcessGroup | None = None) -> torch.Tensor:
        """Return the largest d^2 up to which, in ascending order, the mean is at most the setting `threshold`."""
        return longest_prefix_end(scores, self.threshold, group)

    def factor(self, batch: BatchView) -> torch.Tensor:
        """0 on outward tokens whose d^2 is above the threshold, else 1."""
        return 1.0 - (_outward(batch) & (self.squares(batch) > batch.known_threshold)).to(batch.d.dtype)

    def measured(self, batch: BatchView) -> dict[str, torch.Tensor]:
        return {f"{self.prefix()}/largest": batch.known_threshold}


def _outward(batch: BatchView) -> torch.Tensor:
    """Return, as (N,) bool, the active tokens whose update leads away from mu, A d > 0."""
    return batch.mask & (torch.sign(batch.advantages) * torch.sign(batch.d) > 0)
