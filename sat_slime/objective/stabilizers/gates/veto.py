"""Veto: drops a response with a token that the trainer finds all but impossible."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import Gate, PositiveFloat, Row, Style, around_one


@dataclass(frozen=True)
class Veto(Gate):
    """A gate against broken tokens, rather than against staleness."""

    low: PositiveFloat = 1e-4
    """Least pi_proximal / mu of a token at which its response is kept. slime's and SkyRL's."""
    high: PositiveFloat | None = None
    """Largest pi_proximal / mu of a token at which its response is kept. Unset: no bound; SkyRL suggests 100."""

    name = "veto"
    key = "veto"
    place = "suffix"
    label = "Veto"
    help = "Veto on responses with a token that the trainer finds all but impossible."
    switch_help = "Drop responses with such a token."
    row = Row(
        "Veto",
        unit="sequence",
        discriminator="min k, k = π_proximal / μ",
        constraint="min k ≥ low",
        weight="{0, 1}",
        direction="one-sided",
        formula="S M,  M = 0 where a token of the response has π_proximal / μ below low, or above high, else 1",
        source="slime's example rs_veto_threshold, SkyRL's outlier mask",
    )
    style = Style("sky", (0, (2, 2)))

    def __post_init__(self) -> None:
        around_one(self.low, self.high or float("inf"))

    def factor(self, batch: BatchView) -> torch.Tensor:
        """0 where a token of the response has pi_proximal / mu below low or above high, else 1."""
        k = batch.engine_ratio
        out = k < self.low if self.high is None else (k < self.low) | (k > self.high)
        return 1.0 - batch.sequence_max(out.to(k.dtype))
