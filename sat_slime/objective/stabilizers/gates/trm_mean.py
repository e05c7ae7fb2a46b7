"""TRM-mean: drops the responses whose mean divergence from the engine is too large."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import Gate, PositiveFloat, Row, Style

LARGEST = 20.0
"""Log-ratios are held inside plus and minus this."""


@dataclass(frozen=True)
class TRMMean(Gate):
    """Trust region masking by the K3 estimate of the KL. The paper wants it together with trm-max."""

    delta: PositiveFloat = 0.01
    """Largest mean of e^d - 1 - d at which a response is kept, d = log(pi_proximal / mu), in nats. That of verl's
    presets."""

    name = "trm-mean"
    key = "trm_mean"
    place = "suffix"
    label = "TRM-mean"
    help = "Trust region masking by the mean K3 KL of a response."
    switch_help = "Drop responses whose mean K3 is too large."
    row = Row(
        "TRM (mean)",
        unit="sequence",
        discriminator="mean K3 of log(π_proximal / μ)",
        constraint="mean K3 ≤ δ",
        weight="{0, 1}",
        direction="symmetric",
        formula="S M,  M = 1{mean over the response of (e^k − 1 − k) ≤ δ},  k = log(π_proximal / μ)",
        source="arXiv 2512.23075, by the sampled tokens as verl's seq_mean_k3; δ is that of verl's presets",
    )
    style = Style("sky", (0, (5, 2, 1, 2, 1, 2)))

    def factor(self, batch: BatchView) -> torch.Tensor:
        """1 where the response's mean e^d - 1 - d, d held inside +-20, is at most delta, else 0."""
        k = batch.engine_log_ratio.clamp(-LARGEST, LARGEST)
        return (batch.sequence_mean(k.expm1() - k) <= self.delta).to(k.dtype)
