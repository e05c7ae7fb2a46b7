"""Gates: detached masks against the rollout engine. Each maps (config, method, batch, group) to (N,) factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .batch import TokenBatch
from .method import DPPO, IcePop, KPop, Method, SeqClip
from .ratio import engine_log_ratio, proximal_log_probs, sequence_mean


def dppo_gate(config: DPPO, method: Method, batch: TokenBatch, group: dist.ProcessGroup | None) -> Tensor:
    """1 where the update is not outward or mu |r - 1| <= delta, r = pi / mu of the token (Eq. app-dppo-mask)."""
    d = batch.active_or_zero(batch.log_probs.detach() - batch.rollout_log_probs)
    outward = batch.advantages.sign() * d.sign() > 0
    variation = batch.rollout_log_probs.exp() * d.expm1().abs()
    return (~outward | (variation <= config.delta)).to(d.dtype)


def icepop_gate(config: IcePop, method: Method, batch: TokenBatch, group: dist.ProcessGroup | None) -> Tensor:
    """1 (form mask) or k (form weight) where k = pi_proximal / mu is in [low, high], else 0 (Eq. app-icepop)."""
    k = engine_log_ratio(method, batch).exp()
    inside = (k >= config.low) & (k <= config.high)
    return torch.where(inside, k, 0.0) if config.form == "weight" else inside.to(k.dtype)


def kpop_gate(config: KPop, method: Method, batch: TokenBatch, group: dist.ProcessGroup | None) -> Tensor:
    """1 where the Bernoulli KL between pi_proximal and mu is at most phi in both directions (Eq. app-kpop)."""
    pi, mu = proximal_log_probs(method, batch), batch.rollout_log_probs
    close = (bernoulli_kl(pi, mu) <= config.phi) & (bernoulli_kl(mu, pi) <= config.phi)
    return close.to(pi.dtype)


def bernoulli_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(Bernoulli(p) || Bernoulli(q)) from log p and log q. Never negative, which rounding alone would not grant."""
    log_p, log_q = log_p.clamp(max=0.0), log_q.clamp(max=0.0)
    p, one_minus_p, one_minus_q = log_p.exp(), -log_p.expm1(), -log_q.expm1()
    chosen = torch.where(p > 0, p * (log_p - log_q), 0.0)
    others = torch.xlogy(one_minus_p, one_minus_p) - torch.xlogy(one_minus_p, one_minus_q)
    return (chosen + others).clamp(min=0.0)


def seqclip_gate(config: SeqClip, method: Method, batch: TokenBatch, group: dist.ProcessGroup | None) -> Tensor:
    """1 where the response's ratio pi / mu, length-normalized, is in [low, high] (Eq. app-seqclip)."""
    token = batch.active_or_zero(batch.log_probs.detach() - batch.rollout_log_probs)
    rho = sequence_mean(token, batch, group).exp()
    return ((rho >= config.low) & (rho <= config.high)).to(rho.dtype)


GATES: dict[type, Callable[[Any, Method, TokenBatch, dist.ProcessGroup | None], Tensor]] = {
    DPPO: dppo_gate,
    IcePop: icepop_gate,
    KPop: kpop_gate,
    SeqClip: seqclip_gate,
}
