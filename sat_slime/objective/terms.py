"""What a method says of its ratio, and arithmetic that settings and tensors share. It imports no torch."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Ratio = Literal["token", "sequence"]
"""token: each token's own ratio; sequence: their geometric mean over the response (Eq. gspo-ratio)."""
Denominator = Literal["rollout", "checkpoint", "trainer", "a3po"]
Need = Literal["lags", "entropies"]
"""Columns of a batch that only some methods read."""

DENOMINATORS: dict[Denominator, str] = {
    "rollout": "μ, the log-prob that the engine sampled with (Eqs. ratio-def, app-rollout-lp)",
    "checkpoint": "π_l, the trainer under the weights that generated the batch (Eq. split)",
    "trainer": "the trainer as the batch begins; identically 1 at one optimizer step per rollout",
    "a3po": "A-3PO's: between μ and π by the lag of the token, without a forward pass",
}
"""The meaning of each denominator of the ratio."""
LARGEST_LOG_RATIO = 40.0
"""Ratios saturate at e^40, without gradient beyond: the square still fits float32. No sound batch comes near it."""
LARGEST_LOG = 1000.0
"""Logarithms outside an exponential count no further than plus and minus this, for the same reason."""


def bounded_exp(log: Tensor) -> Tensor:
    """e^x, saturated at e^40."""
    return log.clamp(max=LARGEST_LOG_RATIO).exp()


def quantile_rank(alpha: float, n: int) -> int:
    """k = ceil(alpha n), exact for the decimal that alpha was written as: 0.9 of 10 is 9, 0.7 of 10 is 7. Raises
    ValueError where alpha is not in (0, 1]."""
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha is {alpha}: the quantile's level is in (0, 1]")
    return -(-Fraction(str(alpha)) * n // 1)
