"""What stands in place of the clip: score forms S = w A log pi, w without gradient; smooth surrogates and penalties."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .gates import bernoulli_kl
from .stabilizer import NonNegative, Positive, Score, Surrogate
from .terms import bounded_exp

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
class RolloutIS(Score):
    """Rollout-IS: S = w A log pi, w = r where 1 - eps_low < r < 1 + eps_high, else 0. SkyRL's policy loss
    rollout_is."""

    eps_low: Positive = 0.2
    """Ratios at or below 1 - eps_low are dropped."""
    eps_high: Positive = 0.2
    """Ratios at or above 1 + eps_high are dropped. Both are SkyRL's."""
    name, only_over = "rollout-is", ("rollout",)

    def weight(self, t: Tokens) -> Tensor:
        return t.ratio.where((t.ratio > 1 - self.eps_low) & (t.ratio < 1 + self.eps_high), 0.0)


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
class ASPO(Score):
    """ASPO: S = w A log pi, w = min(1/r, cap) up to r = 1 + eps_high where A > 0, min(r, cap) from 1 - eps_low on
    elsewhere, else 0. Archer2.0's public code, with one interval for tokens of high and low entropy."""

    eps_low: Positive = 0.2
    """With a negative advantage ratios below 1 - eps_low are dropped."""
    eps_high: Positive = 0.2
    """With a positive advantage ratios above 1 + eps_high are dropped."""
    cap: Positive = 3.0
    """Largest weight. The gradient stays there, which the dual clip takes away."""
    name = "aspo"

    def weight(self, t: Tokens) -> Tensor:
        r = t.ratio
        up = (-t.d).exp().clamp(max=self.cap).where(r <= 1 + self.eps_high, 0.0)
        return up.where(t.A > 0, r.clamp(max=self.cap).where(r >= 1 - self.eps_low, 0.0))


@dataclass(frozen=True)
class GIPO(Score):
    """GIPO: S = w A log pi, w = r exp(-d^2 / (2 sigma^2)), which is 0 where |d| is huge. arXiv 2603.03955; the form and
    sigma are of public code, which AcceRL's authors and others share."""

    sigma: Positive = 1.0
    """Width of the Gaussian in log r. 1 is that of public code, whose authors also ran 0.1 to 2."""
    name = "gipo"

    def weight(self, t: Tokens) -> Tensor:
        return bounded_exp(t.bounded_d - (t.bounded_d / self.sigma).square() / 2)


@dataclass(frozen=True)
class Flash(Score):
    """FlashREINFORCE: S = w A log pi, w = r in responses whose mean KL(Bernoulli(mu) || Bernoulli(pi)) is at most
    delta, else 0. Its public code, without its advantage and its sampling."""

    delta: Positive = 5e-3
    """Largest mean of KL(Bernoulli(mu) || Bernoulli(pi)) over the response at which it is kept, in nats. That of its
    R1-distill recipe, OpenRLHF and molt; the function's own default is 3e-3."""
    name, only_over = "flash", ("rollout",)

    def weight(self, t: Tokens) -> Tensor:
        low, high = math.log(1e-6), math.log1p(-1e-6)
        divergence = t.mean(bernoulli_kl(t.log_mu.clamp(low, high), t.log_pi.clamp(low, high)))
        return t.ratio.where(divergence <= self.delta, 0.0)


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


# --------------------------------------------------------------------------------------- smooth surrogates, penalties


@dataclass(frozen=True)
class SPO(Surrogate):
    """SPO: S = r A - |A| (r - 1)^2 / (2 eps). Eq. app-spo; eps is PPO's."""

    eps: Positive = 0.2
    """Distance from 1 at which the penalized surrogate has its optimum; PPO's radius."""
    name, idle_at_one = "spo", True

    def values(self, t: Tokens) -> Tensor:
        return t.ratio * t.A - t.A.abs() / (2 * self.eps) * (t.ratio - 1).square()


@dataclass(frozen=True)
class DRPO(Surrogate):
    """DRPO: S = r A - |A| mu (r - 1)^2 / (2 delta). Eq. app-drpo; delta is that of its public code."""

    delta: Positive = 12.5
    """Divisor of the penalty; the larger, the weaker. The paper has none; this one is of DRPO's public code."""
    name, idle_at_one = "drpo", True

    def values(self, t: Tokens) -> Tensor:
        return t.ratio * t.A - t.A.abs() / (2 * self.delta) * t.log_mu.exp() * (t.ratio - 1).square()


@dataclass(frozen=True)
class SAPO(Surrogate):
    """SAPO: S = A (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A. arXiv 2511.20347."""

    tau_pos: Positive = 1.0
    """Steepness of the sigmoid where the advantage is positive."""
    tau_neg: Positive = 1.05
    """Steepness of the sigmoid elsewhere. Both are the paper's."""
    name = "sapo"

    def values(self, t: Tokens) -> Tensor:
        tau = t.A.new_full(t.A.shape, self.tau_neg).masked_fill(t.A > 0, self.tau_pos)
        return t.A * (4 / tau) * (tau * (t.ratio - 1)).sigmoid()


@dataclass(frozen=True)
class IPO(Surrogate):
    """IPO: S = 1(|pi - mu| <= eps) r A - kl_tau d^2. prime-rl's default loss, with its numbers. Its metric ipo/masked
    is the share of tokens whose r A it drops."""

    eps: Positive = 0.1
    """Largest |pi - mu| of the sampled token at which its r A counts, whichever way the update leads."""
    kl_tau: NonNegative = 1e-3
    """Weight of the penalty d^2, which is on dropped tokens too."""
    name, only_over = "ipo", ("rollout",)

    def values(self, t: Tokens) -> Tensor:
        kept = (t.log_pi.exp() - t.log_mu.exp()).abs() <= self.eps
        t.measured["ipo/masked"] = ~kept
        return kept * t.ratio * t.A - self.kl_tau * t.bounded_d.square()


@dataclass(frozen=True)
class DRO(Surrogate):
    """DRO: S = A log pi - beta d^2 / 2. verl's policy loss dro; also the regularizer of Kimi k1.5, arXiv 2501.12599."""

    beta: Positive = 0.1
    """Weight of the penalty. verl has no default; this one is ROLL's."""
    name, idle_at_one = "dro", True

    def values(self, t: Tokens) -> Tensor:
        return t.A * t.score - self.beta / 2 * t.bounded_d.square()
