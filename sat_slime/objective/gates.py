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
from .stabilizer import stabilizer


@stabilizer(
    "dppo",
    "DPPO",
    unit="token",
    discriminator="D_TV = |π − μ|",
    constraint="D_TV ≤ δ",
    weight="{0, 1}",
    direction="asymmetric",
    formula="S M,  M = 1{sign(A (r − 1)) ≤ 0  ∨  μ |r − 1| ≤ δ},  r = π / μ",
    source="Eqs. app-bintv, app-dppo-mask",
    needs="rollout log-probs",
    excludes="nothing",
)
@stabilizer(
    "dppo-kl",
    "DPPO (binary KL)",
    unit="token",
    discriminator="Bernoulli KL(μ‖π)",
    constraint="KL ≤ δ",
    weight="{0, 1}",
    direction="asymmetric",
    formula="S M,  M = 1{sign(A (r − 1)) ≤ 0  ∨  μ log(μ/π) + (1 − μ) log((1 − μ)/(1 − π)) ≤ δ},  r = π / μ",
    source=(
        "Eq. app-dppo-mask with the Bernoulli KL of Eq. app-kpop in place of D_TV, the variant of DPPO's own paper; "
        "δ is that of public code (verl, SkyRL)"
    ),
    needs="rollout log-probs",
    excludes="nothing",
)
def dppo_gate(config: DPPO, method: Method, batch: TokenBatch, group: dist.ProcessGroup | None) -> Tensor:
    """1 where the update is not outward or the token's divergence is at most delta, r = pi / mu of the token (Eq.
    app-dppo-mask): mu |r - 1|, or KL(Bernoulli(mu) || Bernoulli(pi))."""
    d = batch.active_or_zero(batch.log_probs.detach() - batch.rollout_log_probs)
    outward = batch.advantages.sign() * d.sign() > 0
    if config.divergence == "tv":
        divergence = batch.rollout_log_probs.exp() * d.expm1().abs()
    else:
        divergence = bernoulli_kl(batch.rollout_log_probs, batch.log_probs.detach())
    return (~outward | (divergence <= config.delta)).to(d.dtype)


@stabilizer(
    "icepop",
    "IcePop",
    unit="token",
    discriminator="k = π_proximal / μ",
    constraint="symmetric range gate",
    weight="{0, 1}",
    direction="symmetric",
    formula="S M,  M = 1{low ≤ k ≤ high},  k = π_proximal / μ",
    source="Eq. app-icepop, as the binary mask; the range is the usual one of public code",
    needs="rollout log-probs",
    excludes="nothing",
)
@stabilizer(
    "icepop-weight",
    "IcePop (weight)",
    unit="token",
    discriminator="k = π_proximal / μ",
    constraint="symmetric range gate",
    weight="k in range, else 0",
    direction="symmetric",
    formula="S M,  M = k 1{low ≤ k ≤ high},  k = π_proximal / μ",
    source="Eq. app-icepop; the range is the usual one of public code",
    needs="rollout log-probs",
    excludes="TIS, and denominator rollout: π / μ would count twice",
)
def icepop_gate(config: IcePop, method: Method, batch: TokenBatch, group: dist.ProcessGroup | None) -> Tensor:
    """1 (form mask) or k (form weight) where k = pi_proximal / mu is in [low, high], else 0 (Eq. app-icepop)."""
    k = engine_log_ratio(method, batch).exp()
    inside = (k >= config.low) & (k <= config.high)
    return torch.where(inside, k, 0.0) if config.form == "weight" else inside.to(k.dtype)


@stabilizer(
    "kpop",
    "KPop",
    unit="token",
    discriminator="Bernoulli KL",
    constraint="KL ≤ φ both ways",
    weight="{0, 1}",
    direction="symmetric",
    formula="S M,  M = 1{KL(π‖μ) ≤ φ} 1{KL(μ‖π) ≤ φ},  KL(p‖q) = p log(p/q) + (1 − p) log((1 − p)/(1 − q))",
    source="Eq. app-kpop; φ is our choice, the smaller of two (0.1, 2.0) in public examples",
    needs="rollout log-probs",
    excludes="nothing",
)
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


@stabilizer(
    "seqclip",
    "SeqClip",
    unit="sequence",
    discriminator="ρ",
    constraint="low ≤ ρ ≤ high",
    weight="{0, 1}",
    direction="symmetric",
    formula="S M,  M = 1{low ≤ ρ ≤ high},  ρ = exp(mean over the response of log π − log μ)",
    source="Eq. app-seqclip; the range is our choice, GSPO's interval made symmetric in the logarithm",
    needs="rollout log-probs",
    excludes="nothing",
)
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
