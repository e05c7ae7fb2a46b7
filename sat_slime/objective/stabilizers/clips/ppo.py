"""PPO: the clip interval and the surrogate min(r A, clip(r) A), on which all bases without one of their own stand.

`surrogate.policy_surrogate` computes it with PPO's radii (`base_radii`), those of a radius policy, or those that SAT
contracts (`sat.radii`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

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
    """min(r A, clip(r) A): `clipped_surrogate`."""

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
    )
    style = Style("black", "-", "v")


Radii: TypeAlias = "tuple[float | torch.Tensor, float | torch.Tensor]"
"""Radii of an interval below and above 1: two numbers, or two (N,) tensors."""


def base_radii(clip: Clip | None) -> tuple[float, float]:
    """Return radii of PPO's interval (Eq. ppo-objective); without a clip, those of an interval that cuts nothing."""
    return (1.0, float("inf")) if clip is None else (clip.eps_low, clip.eps_high)


def clipped_surrogate(
    r: torch.Tensor, A: torch.Tensor, eps_low: float | torch.Tensor, eps_high: float | torch.Tensor
) -> torch.Tensor:
    """Return (N,) S = min(r A, clip(r, 1 - eps_low, 1 + eps_high) A) (Eqs. ppo-objective, satrloss).

    Args:
        r: (N,) ratios, with gradient.
        A: (N,) advantages, without.
        eps_low, eps_high: radii of the interval below and above 1, two numbers or two (N,) tensors.
    """
    return torch.minimum(r * A, r.clamp(1 - eps_low, 1 + eps_high) * A)  # type: ignore[arg-type]


def is_cut(S: torch.Tensor, r: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
    """Return, as (N,) bool, the tokens whose gradient the interval takes away: clip(r) A < r A."""
    return S.detach() < r.detach() * A


def cut_counts(cut: torch.Tensor, A: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the 0-dim counts of the tokens that are cut: all of them, those with advantage above 0 and those below."""
    return {"clip/fraction": cut.sum(), "clip/upper": (cut & (A > 0)).sum(), "clip/lower": (cut & (A < 0)).sum()}


def dual_clip(dual: float, values: torch.Tensor, advantages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (N,) max(S, dual A) where A < 0, which bounds what a token with a huge ratio and a negative advantage can
    weigh; and the (N,) bool tokens that it holds."""
    bound = dual * advantages
    held = torch.where(advantages < 0, torch.maximum(values, bound), values)
    return held, (advantages < 0) & (values.detach() < bound)
