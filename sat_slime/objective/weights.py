"""Detached weights on the loss."""

from __future__ import annotations

from torch import Tensor

from .method import TIS
from .stabilizer import stabilizer


@stabilizer(
    "tis",
    "TIS",
    unit="token",
    discriminator="r = π_proximal / μ",
    constraint="one-sided cap",
    weight="min(r, C)",
    direction="one-sided",
    formula="S w,  w = min(π_proximal / μ, C), detached",
    source="Eq. app-tis; C is that of public code",
    needs="rollout log-probs; with SAT also the trainer's log-probs under the generating weights",
    excludes="denominator rollout, and IcePop's weight: π / μ would count twice",
)
def tis_weight(config: TIS, engine_log_ratio: Tensor) -> Tensor:
    """(N,) min(pi_proximal / mu, cap) from its detached logarithm (Eq. app-tis)."""
    return engine_log_ratio.exp().clamp(max=config.cap)
