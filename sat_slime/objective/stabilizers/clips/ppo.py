"""PPO: the clip interval. All bases without a penalty or a constraint of their own stand on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...stabilizer import Clipping, PositiveFloat, Row, Style


@dataclass(frozen=True)
class Clip:
    """PPO's interval [1 - eps_low, 1 + eps_high] (Eq. ppo-objective)."""

    eps_low: PositiveFloat = 0.2
    """Lower radius: ratios below 1 - eps_low are clipped when the advantage is negative."""
    eps_high: PositiveFloat = 0.2
    """Upper radius: ratios above 1 + eps_high are clipped when the advantage is positive."""
    dual: PositiveFloat | None = None
    """Dual clip: with a negative advantage the surrogate is at least dual * A; above 1. Unset: off, as in the paper."""


@dataclass(frozen=True)
class PPO(Clipping):
    """min(r A, clip(r) A); `clip.clipped_surrogate` is the formula."""

    name = "ppo"
    row = Row(
        "PPO",
        unit="token",
        discriminator="|r − 1|",
        constraint="|r − 1| ≤ ε",
        weight="{0, 1}",
        direction="asymmetric",
        formula="S = min(r A, clip(r, 1 − ε_low, 1 + ε_high) A)",
        source="Eqs. ppo-objective, app-ppo-mask",
        needs="rollout log-probs",
        excludes="nothing",
    )
    style = Style("black", "-", "v")


def base_radii(clip: Clip | None) -> tuple[float, float]:
    """Radii of PPO's interval (Eq. ppo-objective); without a clip, those of an interval that cuts nothing."""
    return (1.0, float("inf")) if clip is None else (clip.eps_low, clip.eps_high)


def dual_clip(dual: float, values: torch.Tensor, advantages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(N,) max(S, dual A) where A < 0, which bounds what a token with a huge ratio and a negative advantage can weigh;
    and the (N,) bool tokens that it holds."""
    bound = dual * advantages
    held = torch.where(advantages < 0, torch.maximum(values, bound), values)
    return held, (advantages < 0) & (values.detach() < bound)
