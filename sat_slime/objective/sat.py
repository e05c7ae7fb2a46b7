"""SAT in the order of the paper: staleness, quantile, gate, kernel. `surrogate.py` clips with the radii it leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

from annotated_types import Gt, Le

from .stabilizer import Judge, Positive, Scope
from .terms import quantile_rank

if TYPE_CHECKING:  # so that settings are read before torch is imported
    import torch.distributed as dist
    from torch import Tensor

    from .tokens import Tokens


@dataclass(frozen=True)
class SAT(Judge):
    """SAT: S = min(r A, clip(r, 1 - eps_low c_low, 1 + eps_high c_high) A), c = 1 / (1 + (|d| / q)^p) on the side of d
    where |d| > q, q the alpha quantile of |d|, else 1. Eqs. satr-d, quantile, gate, kernel, adaptive-eps, satrloss."""

    alpha: Annotated[float, Gt(0), Le(1)] = 0.9
    """Quantile of |d| that marks where the tail starts."""
    exponent: Positive = 2.0
    """Exponent p of the Hill kernel 1 / (1 + (|d| / q)^p)."""
    scope: Scope | None = None
    """Tokens over which the quantile is taken: one micro-batch (the paper) or the whole optimizer step on all ranks.
    Unset: the step where the ratio is the sequence's, since a micro-batch of long responses has too few of them; else
    the micro-batch."""
    name, place, idle_at_one = "sat", "prefix", True

    def scores(self, t: Tokens) -> Tensor:
        """(n,) staleness (Eq. satr-d)."""
        return t.d.detach().abs()

    def threshold_of(self, scores: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
        """q (Eq. quantile)."""
        from .quantile import tail_quantile

        return tail_quantile(scores, self.alpha, group)

    def measure(self, t: Tokens, c_low: Tensor, c_high: Tensor, own_scope: bool) -> None:
        """Write sat/* into t.measured. own_scope: the threshold is of these tokens alone.

        At most n - ceil(alpha n) tokens lie above q, and those of one d all do or none: where the largest unit of one
        d, a token or under the sequence ratio a response, has more tokens than that, the gate may stay shut."""
        t.measured["sat/q"] = t.threshold
        t.measured["sat/gate_rate"] = c_low.minimum(c_high) < 1
        if own_scope:
            n = t.n if t.group is None else int(t.whole_lengths.sum())
            above = n - quantile_rank(self.alpha, n)
            responses = t.unit == "sequence" and len(t.lengths) > 0
            largest = t.whole_lengths.amax() if responses else c_low.new_ones(())
            t.measured["sat/scope_too_small"] = largest > above


class RadiusAt(NamedTuple):
    """one_radius at a q that may be on a device still: `float` reads it from there, when the step is over."""

    q: Tensor
    eps: float
    exponent: float
    above: bool

    def __float__(self) -> float:
        return one_radius(float(self.q), self.eps, self.exponent, above=self.above)


def one_radius(q: float, eps: float, exponent: float = 2.0, *, above: bool = True) -> float:
    """The radius at which PPO's clip has the gradient of SAT's: the largest |r - 1| that SAT keeps on one side of 1.

    SAT removes an outward token's gradient where |r - 1| > eps c(|d|). The left side rises with |d| and c never does,
    so they cross once: at the base's own end where that is at most q, else at q, where c falls from 1 to 1/2, or
    behind it. Where q is much smaller than eps that is near (eps q^p)^(1 / (p + 1)).

    Args:
        q: the tail quantile of |d|; 0 shuts the gate.
        eps: the base's radius on that side.
        above: the side r > 1; else r < 1.
    """
    end = math.log1p(eps) if above else -math.log1p(-eps) if eps < 1 else math.inf
    if math.isnan(q):
        return q
    if q == 0 or end <= q:
        return eps

    def moved(u: float) -> float:
        return math.expm1(u) if above else -math.expm1(-u)

    def kept(u: float) -> bool:
        """moved(u) (1 + (u / q)^p) <= eps, in logarithms, which do not overflow."""
        x = exponent * (math.log(u) - math.log(q))
        return math.log(moved(u)) + max(x, 0.0) + math.log1p(math.exp(-abs(x))) <= math.log(eps)

    low, high = q, end
    if end == math.inf:  # below, a radius of 1 or more has no end of its own
        high = 2 * q
        while kept(high):
            high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if kept(middle) else (low, middle)
    return moved(low)


def contraction_factors(log_ratio: Tensor, q: Tensor | float, exponent: float = 2.0) -> tuple[Tensor, Tensor]:
    """The contraction of the lower and the upper radius (Eqs. gate, kernel): c = 1 / (1 + (|d| / q)^exponent) where
    q > 0 and |d| > q, strictly, on the side of d's sign; exactly 1 elsewhere.

    Args:
        log_ratio: (N,) d, detached.
        q: the tail quantile, 0-dim.

    Returns:
        c_low, c_high, each (N,).
    """
    staleness, one = log_ratio.abs(), log_ratio.new_ones(())
    c = (1.0 + (staleness / q) ** exponent).reciprocal().where((staleness > q) & (q > 0), one)
    return c.where(log_ratio < 0, one), c.where(log_ratio > 0, one)
