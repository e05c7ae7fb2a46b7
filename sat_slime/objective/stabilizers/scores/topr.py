"""TOPR: good responses count in full, bad ones by their ratio, which is cut at 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ...batch import Need
from ...batch_view import BatchView
from ...stabilizer import PositiveFloat, Row, Score, Style


@dataclass(frozen=True)
class TOPR(Score):
    """Tapered off-policy REINFORCE."""

    cap: PositiveFloat = 1.0
    """Largest weight of a token of a bad response."""
    good_by: Literal["reward", "advantage"] = "reward"
    """The quantity that makes a response good where it is above 0: its reward, as in the paper and in ROLL, or the
    token's advantage."""

    name = "topr"
    row = Row(
        "TOPR",
        unit="token",
        discriminator="r = π / μ",
        constraint="one-sided cap on bad responses",
        weight="1, or min(r, C)",
        direction="one-sided",
        formula="S = w A log π,  w = 1 where the reward is above 0, else min(r, C), detached",
        source="arXiv 2503.14286, eq. 8, with the token's ratio as in ROLL where the paper has the sequence's",
        needs="rollout log-probs; rewards",
        excludes="SAT (a score form has no interval); a weight π / μ, which it carries itself",
    )
    denominators = ("rollout",)
    style = Style("purple", "-", "^")

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("rewards",) if self.good_by == "reward" else ()

    def weight(self, batch: BatchView) -> torch.Tensor:
        """1 for good responses, min(r, cap) for bad ones."""
        good = (batch.rewards if self.good_by == "reward" else batch.advantages) > 0
        return torch.where(good, 1.0, batch.ratio.clamp(max=self.cap))
