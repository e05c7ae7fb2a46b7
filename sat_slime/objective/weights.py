"""Detached weights on the loss."""

from __future__ import annotations

from torch import Tensor

from .method import TIS


def tis_weight(config: TIS, engine_log_ratio: Tensor) -> Tensor:
    """(N,) min(pi_proximal / mu, cap) from its detached logarithm (Eq. app-tis)."""
    return engine_log_ratio.exp().clamp(max=config.cap)
