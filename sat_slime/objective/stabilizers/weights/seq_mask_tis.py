"""Seq-Mask-TIS: importance sampling without a cap, for responses whose geometric mean ratio is close to 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import PositiveFloat, Row, Style, Weight, around_one


@dataclass(frozen=True)
class SeqMaskTIS(Weight):
    """MIS-Geo's gate and the plain weight pi_proximal / mu."""

    low: PositiveFloat = 0.99
    """Least geometric mean ratio at which a response is kept."""
    high: PositiveFloat = 1.01
    """Largest geometric mean ratio at which a response is kept; NeMo-RL's are 0.999 and 1.002."""

    name = "seq-mask-tis"
    key = "seq_mask_tis"
    place = "suffix"
    label = "Seq-Mask-TIS"
    help = "Importance sampling of the responses whose geometric mean ratio is in range."
    switch_help = "Weight each token's loss by its ratio, detached; drop the responses out of range."
    row = Row(
        "Seq-Mask-TIS",
        unit="sequence, token",
        discriminator="ρ_k = exp(mean log k), k = π_proximal / μ",
        constraint="low ≤ ρ_k ≤ high",
        weight="k or 0",
        direction="symmetric",
        formula="S w,  w = k 1{low ≤ exp(mean over the response of log k) ≤ high}, detached,  k = π_proximal / μ",
        source="OpenRLHF's and NeMo-RL's public code; the range is that of MIS-Geo",
        needs="rollout log-probs; with SAT also the trainer's log-probs under the generating weights",
        excludes="denominator rollout, and other weights: π / μ would count twice",
    )
    style = Style("orange", (0, (5, 1, 1, 1)))

    def __post_init__(self) -> None:
        around_one(self.low, self.high)

    @property
    def engine_weight(self) -> str:
        return "Seq-Mask-TIS"

    def factor(self, batch: BatchView) -> torch.Tensor:
        """k = pi_proximal / mu where the response's geometric mean of it is in [low, high], else 0."""
        rho = batch.sequence_mean(batch.engine_log_ratio).exp()
        return torch.where((rho >= self.low) & (rho <= self.high), batch.engine_ratio, 0.0)
