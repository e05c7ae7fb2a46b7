"""The KL divergence of what a sampled token says of a distribution: that it was drawn, or another one."""

from __future__ import annotations

import torch


def bernoulli_kl(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """KL(Bernoulli(p) || Bernoulli(q)) from log p and log q. Never negative, which rounding alone would not grant."""
    log_p, log_q = log_p.clamp(max=0.0), log_q.clamp(max=0.0)
    p, one_minus_p, one_minus_q = log_p.exp(), -log_p.expm1(), -log_q.expm1()
    chosen = torch.where(p > 0, p * (log_p - log_q), 0.0)
    others = torch.xlogy(one_minus_p, one_minus_p) - torch.xlogy(one_minus_p, one_minus_q)
    return (chosen + others).clamp(min=0.0)
