"""Seq-TIS: truncated importance sampling by the product of a response's ratios to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ...batch_view import BatchView
from ...stabilizer import PositiveFloat, Row, Style, Weight

LARGEST_LOG = 20.0
"""The logarithm of the product is held inside plus and minus this."""


@dataclass(frozen=True)
class SeqTIS(Weight):
    """One weight for all tokens of a response: the product of pi_proximal / mu. Long responses leave any range."""

    cap: PositiveFloat = 2.0
    """Upper bound of the weight. verl's; SkyRL has 5, TRL 3."""
    form: Literal["clamp", "mask"] = "clamp"
    """Above the cap: clamp: the weight is the cap; mask: it is 0, as by default in TRL."""

    name = "seq-tis"
    key = "seq_tis"
    place = "suffix"
    label = "Seq-TIS"
    help = "Truncated importance sampling of whole responses."
    switch_help = "Weight each token's loss by the product of its response's ratios, capped and detached."
    row = Row(
        "Seq-TIS",
        unit="sequence",
        discriminator="W = Π π_proximal / μ",
        constraint="one-sided cap",
        weight="min(W, C)",
        direction="one-sided",
        formula="S w,  w = min(Π over the response of π_proximal / μ, C), detached",
        source="verl's rollout_is sequence, slime's and SkyRL's sequence TIS; C is verl's",
        needs="rollout log-probs; with SAT also the trainer's log-probs under the generating weights",
        excludes="denominator rollout, and other weights: π / μ would count twice",
    )
    style = Style("orange", (0, (3, 1)))

    @property
    def engine_weight(self) -> str:
        return "Seq-TIS"

    def factor(self, batch: BatchView) -> torch.Tensor:
        """min(W, cap), or 0 above the cap with form mask."""
        product = batch.sequence_sum(batch.engine_log_ratio).clamp(-LARGEST_LOG, LARGEST_LOG).exp()
        if self.form == "mask":
            return torch.where(product <= self.cap, product, 0.0)
        return product.clamp(max=self.cap)
