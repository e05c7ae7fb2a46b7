"""Quadratic penalties in place of the clip. Each maps (config, ratio, advantages, mu) to the (N,) surrogate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .method import DRPO, SPO
from .stabilizer import stabilizer


@stabilizer(
    "spo",
    "SPO",
    unit="token",
    discriminator="|r − 1|",
    constraint="soft quadratic penalty",
    weight="1 ∓ |r − 1|/ε",
    direction="asymmetric",
    formula="S = r A − |A| (r − 1)² / (2 ε)",
    source="Eq. app-spo; ε is PPO's",
    needs="rollout log-probs",
    excludes="SAT (there is no clip interval to contract); denominator trainer at one step per rollout (r is 1)",
)
def spo(config: SPO, ratio: Tensor, advantages: Tensor, mu: Tensor) -> Tensor:
    """r A - |A| (r - 1)^2 / (2 eps) (Eq. app-spo)."""
    return ratio * advantages - advantages.abs() / (2 * config.eps) * (ratio - 1).square()


@stabilizer(
    "drpo",
    "DRPO",
    unit="token",
    discriminator="D_TV = |π − μ|",
    constraint="soft quadratic penalty",
    weight="[1 − 1/δ, 1 + 1/δ]",
    direction="asymmetric",
    formula="S = r A − |A| μ (r − 1)² / (2 δ)",
    source="Eq. app-drpo; δ is that of DRPO's public code",
    needs="rollout log-probs",
    excludes="SAT (there is no clip interval to contract); denominator trainer at one step per rollout (r is 1)",
)
def drpo(config: DRPO, ratio: Tensor, advantages: Tensor, mu: Tensor) -> Tensor:
    """r A - |A| mu (r - 1)^2 / (2 delta) (Eq. app-drpo)."""
    return ratio * advantages - advantages.abs() / (2 * config.delta) * mu * (ratio - 1).square()


PENALTIES: dict[type, Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {SPO: spo, DRPO: drpo}
