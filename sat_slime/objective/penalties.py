"""Quadratic penalties in place of the clip. Each maps (config, ratio, advantages, mu) to the (N,) surrogate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .method import DRPO, SPO


def spo(config: SPO, ratio: Tensor, advantages: Tensor, mu: Tensor) -> Tensor:
    """r A - |A| (r - 1)^2 / (2 eps) (Eq. app-spo)."""
    return ratio * advantages - advantages.abs() / (2 * config.eps) * (ratio - 1).square()


def drpo(config: DRPO, ratio: Tensor, advantages: Tensor, mu: Tensor) -> Tensor:
    """r A - |A| mu (r - 1)^2 / (2 delta) (Eq. app-drpo)."""
    return ratio * advantages - advantages.abs() / (2 * config.delta) * mu * (ratio - 1).square()


PENALTIES: dict[type, Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {SPO: spo, DRPO: drpo}
