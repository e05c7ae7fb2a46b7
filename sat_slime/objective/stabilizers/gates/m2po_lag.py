"""M2PO by lag: M2PO's bound on the second moment grows with the lag."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch import Need
from ...batch_view import BatchView
from ...metric import Metric, Panel
from ...stabilizer import NonNegativeFloat, PositiveFloat, Row, Scope, Style
from .m2po import M2PO


@dataclass(frozen=True)
class M2POByLag(M2PO):
    """M2PO on d^2 / max(1, lag)^power. In a batch of one lag it is M2PO with threshold tau lag^power; where lags differ
    each token is judged by its own."""

    threshold: PositiveFloat = 0.002
    """Largest mean of d^2 over the outward tokens that are kept, at lag 0 and 1."""
    power: NonNegativeFloat = 0.9
    """Exponent of the lag by which it grows. 0 is M2PO."""
    scope: Scope = "step"
    """Tokens that are sorted together: the whole optimizer step on all ranks, or one micro-batch."""

    name = "m2po-lag"
    key = "m2po_lag"
    label = "M2PO by lag"
    row = Row(
        "M2PO by lag",
        unit="batch",
        discriminator="d² / max(1, lag)^p of outward tokens",
        constraint="mean of it ≤ τ",
        weight="{0, 1}",
        direction="asymmetric",
        formula=(
            "S = M r A,  M = 0 for the outward tokens (A d > 0) with the largest d² / max(1, lag)^p of the step, until "
            "its mean over the others is ≤ τ; else 1,  r = π / μ"
        ),
        source="ours, on arXiv 2510.01161",
        needs="rollout log-probs; the lag of each token",
        excludes="SAT and clips, which it replaces; a weight π / μ, which it carries itself",
    )
    style = Style("sky", (0, (2, 1)), "*")
    metrics = (
        Metric(
            "m2po_lag/largest",
            "nats²",
            "The largest d² / max(1, lag)^p of an outward token that is kept.",
            "max",
            panel=Panel("largest d² / lag^p of an outward token that is kept"),
        ),
        Metric(
            "m2po_lag/threshold",
            "nats²",
            "τ max(1, lag)^p, mean over tokens.",
            panel=Panel("bound on the mean d² of outward tokens"),
        ),
    )

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("lags",)

    def squares(self, batch: BatchView) -> torch.Tensor:
        return batch.d.square() / self._growth(batch)

    def measured(self, batch: BatchView) -> dict[str, torch.Tensor]:
        growth = (self._growth(batch) * batch.mask).sum() / max(batch.n_active, 1)
        return {**super().measured(batch), "m2po_lag/threshold": self.threshold * growth}

    def _growth(self, batch: BatchView) -> torch.Tensor:
        return batch.lags.clamp(min=1.0) ** self.power
