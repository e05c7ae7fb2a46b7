"""IcePop: a gate on the ratio of the trainer to the engine, in a range around 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ...batch_view import BatchView
from ...stabilizer import Gate, PositiveFloat, Row, Style, Variant, around_one


@dataclass(frozen=True)
class IcePop(Gate):
    """IcePop's gate on k = pi_proximal / mu (Eq. app-icepop). `method: icepop-weight` is short for base icepop with
    form weight."""

    low: PositiveFloat = 0.5
    """Smallest k that is kept."""
    high: PositiveFloat = 5.0
    """Largest k that is kept. The paper has no bounds; these are the usual ones of public code."""
    form: Literal["mask", "weight"] = "mask"
    """mask: k in range counts once; weight: it is multiplied by k, which needs a denominator other than mu."""

    name = "icepop"
    row = Row(
        "IcePop",
        unit="token",
        discriminator="k = π_proximal / μ",
        constraint="symmetric range gate",
        weight="{0, 1}",
        direction="symmetric",
        formula="S M,  M = 1{low ≤ k ≤ high},  k = π_proximal / μ",
        source="Eq. app-icepop, as the binary mask; the range is the usual one of public code",
    )
    variants = (
        Variant(
            "weight",
            {"form": "weight"},
            Row(
                "IcePop (weight)",
                unit="token",
                discriminator="k = π_proximal / μ",
                constraint="symmetric range gate",
                weight="k in range, else 0",
                direction="symmetric",
                formula="S M,  M = k 1{low ≤ k ≤ high},  k = π_proximal / μ",
                source="Eq. app-icepop; the range is the usual one of public code",
                excludes="TIS, and denominator rollout: π / μ would count twice",
            ),
            marker="d",
        ),
    )
    style = Style("sky", (0, (6, 1)), "D")

    def __post_init__(self) -> None:
        around_one(self.low, self.high)

    @property
    def engine_weight(self) -> str:
        return "IcePop's weight" if self.form == "weight" else ""

    def factor(self, batch: BatchView) -> torch.Tensor:
        """1 (form mask) or k (form weight) where k = pi_proximal / mu is in [low, high], else 0 (Eq. app-icepop)."""
        k = batch.engine_ratio
        inside = (k >= self.low) & (k <= self.high)
        return torch.where(inside, k, 0.0) if self.form == "weight" else inside.to(k.dtype)
