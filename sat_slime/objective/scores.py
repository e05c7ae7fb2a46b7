"""Score forms S = w A log pi, w without gradient, in place of the clip."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .stabilizer import Positive, Score

if TYPE_CHECKING:  # so that settings are read before torch is imported
    from torch import Tensor

    from .tokens import Tokens


@dataclass(frozen=True)
class CISPO(Score):
    """CISPO: S = w A log pi, w = clip(r, 1 - eps_low, 1 + eps_high). arXiv 2506.13585 and 2510.13786."""

    eps_low: Positive = 1.0
    """The weight is at least 1 - eps_low; 1 is no lower end."""
    eps_high: Positive = 4.0
    """The weight is at most 1 + eps_high. 5 in all is SkyRL's, after ScaleRL, and what AReaL advises. TRL calls the cap
    itself epsilon_high."""

    name = "cispo"

    def weight(self, t: Tokens) -> Tensor:
        return t.ratio.clamp(1 - self.eps_low, 1 + self.eps_high)


@dataclass(frozen=True)
class TOPR(Score):
    """TOPR: S = w A log pi, w = 1 where A > 0, else min(r, cap). arXiv 2503.14286, eq. 8, by the advantage where the
    paper has the reward, and with the token's ratio as in ROLL where it has the sequence's."""

    cap: Positive = 1.0
    """Largest weight of a token of a bad response."""

    name, only_over = "topr", ("rollout",)

    def weight(self, t: Tokens) -> Tensor:
        return t.ratio.clamp(max=self.cap).masked_fill(t.A > 0, 1.0)


@dataclass(frozen=True)
class VESPO(Score):
    """VESPO: S = w A log pi, w = W^k e^(lambda (1 - W)), W the product of r over the response, whose logarithm is held
    inside log 1e-8 and 20; largest at W = k / lambda. arXiv 2602.10693 and its public code, whose numbers these are."""

    k_pos: Positive = 2.0
    """Exponent where the response's mean advantage is not negative."""
    lambda_pos: Positive = 3.0
    """Rate of the decay there."""
    k_neg: Positive = 3.0
    """Exponent where the response's mean advantage is negative."""
    lambda_neg: Positive = 2.0
    """Rate of the decay there."""

    name, only_over = "vespo", ("rollout",)

    def weight(self, t: Tokens) -> Tensor:
        log_W, bad = t.sum(t.d.detach()).clamp(math.log(1e-8), 20.0), t.mean(t.A) < 0
        k = log_W.new_full(log_W.shape, self.k_pos).masked_fill(bad, self.k_neg)
        rate = log_W.new_full(log_W.shape, self.lambda_pos).masked_fill(bad, self.lambda_neg)
        return (k * log_W + rate * (1 - log_W.exp())).exp()
