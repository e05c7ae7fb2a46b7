"""Score centering: takes out of REINFORCE what would move the policy whatever the reward is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ...batch import Need
from ...batch_view import BatchView
from ...ratio import MAX_LOG, bounded_ratio
from ...stabilizer import PolicyTerms, PositiveFloat, Row, Score, Style, around_one

LEAST_TAIL = 1e-6
"""The mass outside a head is at least this."""


@dataclass(frozen=True)
class ScoreCentering(Score):
    """REINFORCE with a weight, minus the mean of its weighted score under the engine's distribution."""

    rule: Literal["none", "tis", "icepop"] = "none"
    """The weight f(pi / mu): none: 1; tis: at most `cap`; icepop: 0 outside [low, high]."""
    cap: PositiveFloat = 2.0
    """Rule tis: the largest weight."""
    low: PositiveFloat = 0.5
    """Rule icepop: the smallest ratio that is kept."""
    high: PositiveFloat = 5.0
    """Rule icepop: the largest ratio that is kept."""

    name = "score-centering"
    key = "score_centering"
    label = "Score centering"
    row = Row(
        "Score centering",
        unit="state",
        discriminator="the distributions π and μ of the state",
        constraint="mean score under μ is 0",
        weight="f(π / μ)",
        direction="—",
        formula=(
            "S = A (w log π − C),  w = f(π / μ),  C = Σ over the head of (μ f(π/μ) − α π) log π, w and the brackets "
            "detached,  α = τ f(1/τ),  τ the mass that μ has outside the head over that of π"
        ),
        source="arXiv 2609.20807, eqs. 9, 12, 14; the REINFORCE form",
        needs="rollout log-probs; the likeliest tokens of each state with μ and π of them",
        excludes="SAT (a score form has no interval); a weight π / μ, which its rule is",
    )
    denominators = ("rollout",)
    style = Style("purple", "-", "*")

    def __post_init__(self) -> None:
        around_one(self.low, self.high)

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("heads",)

    @property
    def unread(self) -> tuple[str, ...]:
        read = {"none": (), "tis": ("cap",), "icepop": ("low", "high")}[self.rule]
        return tuple(name for name in ("cap", "low", "high") if name not in read)

    def weight(self, batch: BatchView) -> torch.Tensor:
        """f(pi / mu) of the sampled token."""
        return self.weight_of(batch.ratio)

    def values(self, policy: PolicyTerms, batch: BatchView) -> torch.Tensor:
        """Return A (w log pi - C)."""
        rollout_head = batch.rollout_head
        assert policy.head is not None, "a batch has both heads or none"
        return super().values(policy, batch) - batch.advantages * self.centre(policy.head, rollout_head)

    def weight_of(self, ratio: torch.Tensor) -> torch.Tensor:
        """f of a ratio pi / mu, of any shape."""
        if self.rule == "tis":
            return ratio.clamp(max=self.cap)
        if self.rule == "icepop":
            return torch.where((ratio >= self.low) & (ratio <= self.high), ratio, 0.0)
        return torch.ones_like(ratio)

    def centre(self, policy_head: torch.Tensor, rollout_head: torch.Tensor) -> torch.Tensor:
        """Return (N,) C: the mean under mu of f(pi / mu) times the score, as a function whose gradient it is. The tail
        of mu outside the head is taken for a multiple of pi's.

        Args:
            policy_head: (N, k) log pi, with its gradient.
            rollout_head: (N, k) log mu, -inf where mu is 0.
        """
        with torch.no_grad():
            p, q = policy_head.exp(), rollout_head.exp()
            rest = (1 - q.sum(-1, keepdim=True)).clamp(min=LEAST_TAIL)
            tail = rest / (1 - p.sum(-1, keepdim=True)).clamp(min=LEAST_TAIL)
            alpha = tail * self.weight_of(1 / tail)
            ratio = torch.where(q > 0, bounded_ratio(policy_head - rollout_head), 0.0)
            slope = q * self.weight_of(ratio) - alpha * p
        return (slope * policy_head.clamp(min=-MAX_LOG)).sum(-1)
