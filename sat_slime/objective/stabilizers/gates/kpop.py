"""KPop: a gate on the Bernoulli KL between trainer and engine, either way."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import Gate, PositiveFloat, Row, Style


@dataclass(frozen=True)
class KPop(Gate):
    """KPop's gate (Eq. app-kpop)."""

    phi: PositiveFloat = 0.1
    """Largest Bernoulli KL between pi_proximal and mu on the sampled token, either way, in nats. The paper has none;
    0.1 and 2.0 are found in public examples."""

    name = "kpop"
    row = Row(
        "KPop",
        unit="token",
        discriminator="Bernoulli KL",
        constraint="KL ≤ φ both ways",
        weight="{0, 1}",
        direction="symmetric",
        formula="S M,  M = 1{KL(π‖μ) ≤ φ} 1{KL(μ‖π) ≤ φ},  KL(p‖q) = p log(p/q) + (1 − p) log((1 − p)/(1 − q))",
        source="Eq. app-kpop; φ is our choice, the smaller of two (0.1, 2.0) in public examples",
    )
    style = Style("sky", (0, (6, 1)), "P")

    def factor(self, batch: BatchView) -> torch.Tensor:
        """1 where the Bernoulli KL between pi_proximal and mu is at most phi in both directions (Eq. app-kpop)."""
        pi, mu = batch.log_proximal, batch.log_mu
        close = (bernoulli_kl(pi, mu) <= self.phi) & (bernoulli_kl(mu, pi) <= self.phi)
        return close.to(pi.dtype)


def bernoulli_kl(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """Return KL(Bernoulli(p) || Bernoulli(q)) from log p and log q (Eq. app-kpop): what a sampled token says of two
    distributions, that it was drawn or another one. Never negative, which rounding alone would not grant."""
    log_p, log_q = log_p.clamp(max=0.0), log_q.clamp(max=0.0)
    p, one_minus_p, one_minus_q = log_p.exp(), -log_p.expm1(), -log_q.expm1()
    chosen = torch.where(p > 0, p * (log_p - log_q), 0.0)
    others = torch.xlogy(one_minus_p, one_minus_p) - torch.xlogy(one_minus_p, one_minus_q)
    return (chosen + others).clamp(min=0.0)
