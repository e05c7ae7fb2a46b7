"""Smooth surrogates and penalties, in place of the clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .stabilizer import NonNegative, Positive, Surrogate

if TYPE_CHECKING:  # so that settings are read before torch is imported
    from torch import Tensor

    from .tokens import Tokens


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
