"""TRM-max: drops a response in which one token has moved too far."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import Gate, PositiveFloat, Row, Style


@dataclass(frozen=True)
class TRMMax(Gate):
    """Trust region masking by the worst token. The paper wants it together with trm-mean."""

    delta: PositiveFloat = 2.5
    """Largest d^2 / 2 of a token at which its response is kept, d = log(pi_proximal / mu). An example of verl's: ratios
    within 0.107 and 9.4."""

    name = "trm-max"
    key = "trm_max"
    place = "suffix"
    label = "TRM-max"
    help = "Trust region masking by the largest squared log-ratio of a response."
    switch_help = "Drop responses with one token that moved too far."
    row = Row(
        "TRM (max)",
        unit="sequence",
        discriminator="max k², k = log(π_proximal / μ)",
        constraint="max k² / 2 ≤ δ",
        weight="{0, 1}",
        direction="symmetric",
        formula="S M,  M = 1{max over the response of log(π_proximal / μ)² / 2 ≤ δ}",
        source="arXiv 2512.23075, by the sampled tokens as verl's seq_max_k2; δ is an example of verl's",
    )
    style = Style("sky", (0, (5, 2, 1, 2)))

    def factor(self, batch: BatchView) -> torch.Tensor:
        """1 where the response's largest d^2 / 2 is at most delta, else 0."""
        k2 = batch.engine_log_ratio.square() / 2
        return (batch.sequence_max(k2) <= self.delta).to(k2.dtype)
