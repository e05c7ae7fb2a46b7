"""The clipped surrogate min(r A, clip(r) A), and the bounds that keep a broken log-prob finite."""

from __future__ import annotations

import torch

MAX_LOG_RATIO = 40.0
"""Ratios saturate at e^40, with zero gradient beyond: the square still fits float32, so that a token with a broken
log-prob gives a large finite value and no NaN. No sound batch comes near it."""
MAX_LOG = 1000.0
"""Logarithms that stand outside an exponential count no further than plus and minus this, for the same reason."""


def bounded_ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    """(N,) r = e^d, saturated at e^MAX_LOG_RATIO."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def clipped_surrogate(
    r: torch.Tensor, A: torch.Tensor, below: float | torch.Tensor, above: float | torch.Tensor
) -> torch.Tensor:
    """(N,) S = min(r A, clip(r, 1 - below, 1 + above) A) (Eqs. ppo-objective, satrloss).

    Args:
        r: (N,) ratios, with gradient.
        A: (N,) advantages, without.
        below, above: radii of the interval, two numbers or two (N,) tensors.
    """
    return torch.minimum(r * A, r.clamp(1 - below, 1 + above) * A)  # type: ignore[arg-type]


def is_cut(S: torch.Tensor, r: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
    """(N,) bool: the tokens whose gradient the interval takes away, clip(r) A < r A."""
    return S.detach() < r.detach() * A


def cut_counts(cut: torch.Tensor, A: torch.Tensor) -> dict[str, torch.Tensor]:
    """0-dim counts of the tokens that are cut: all of them, those with advantage above 0 and those below."""
    return {"clip/fraction": cut.sum(), "clip/upper": (cut & (A > 0)).sum(), "clip/lower": (cut & (A < 0)).sum()}
