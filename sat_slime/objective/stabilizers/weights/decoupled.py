"""Decoupled PPO: the clip is against a proximal policy of the trainer, and a weight leads from there to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ...batch_view import BatchView
from ...stabilizer import PositiveFloat, Row, Style, Weight


@dataclass(frozen=True)
class Decoupled(Weight):
    """AReaL's weight. The mask is IcePop's weight with low 0, the clamp is TIS."""

    cap: PositiveFloat = 5.0
    """Largest pi_proximal / mu. It was AReaL's default, which now filters nothing unless told."""
    form: Literal["mask", "clamp"] = "mask"
    """Above the cap: mask: the weight is 0; clamp: it is the cap."""

    name = "decoupled"
    place = "suffix"
    label = "Decoupled"
    help = "Decoupled PPO: a weight from the proximal policy to the engine."
    switch_help = (
        "Weight each token's loss by its ratio of proximal policy and engine, detached; drop it above the cap."
    )
    row = Row(
        "Decoupled PPO",
        unit="token",
        discriminator="k = π_proximal / μ",
        constraint="one-sided range gate",
        weight="k up to C, else 0",
        direction="one-sided",
        formula="S w,  w = k 1{k ≤ C}, detached,  k = π_proximal / μ, the clip on π / π_proximal",
        source="arXiv 2505.24298 and AReaL's public code",
        needs="rollout log-probs; with SAT also the trainer's log-probs under the generating weights",
        excludes="denominator rollout, and other weights: π / μ would count twice",
    )
    style = Style("orange", (0, (1, 2)))

    @property
    def engine_weight(self) -> str:
        return "Decoupled PPO"

    def factor(self, batch: BatchView) -> torch.Tensor:
        """k = pi_proximal / mu up to the cap; above it 0, or the cap with form clamp."""
        k = batch.engine_ratio
        return k.clamp(max=self.cap) if self.form == "clamp" else torch.where(k <= self.cap, k, 0.0)
