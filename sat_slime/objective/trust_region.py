"""The clip interval, and SAT: tail quantile, gate and kernel, contracted radii."""

from __future__ import annotations

from fractions import Fraction

import torch
import torch.distributed as dist
from torch import Tensor

from .method import SAT, Clip
from .stabilizer import stabilizer

RADIX_BITS = 11
"""Bits of the float pattern that one histogram resolves: 16 KiB of counts per all-reduce, three to a float32."""


def quantile_rank(alpha: float, n: int) -> int:
    """k = ceil(alpha n), exact for the decimal that alpha was written as: 0.9 of 10 is 9, 0.7 of 10 is 7.

    Raises:
        ValueError: alpha is not in (0, 1].
    """
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha is {alpha}: the quantile's level is in (0, 1]")
    return -(-Fraction(str(alpha)) * n // 1)


def tail_quantile(
    abs_log_ratio: Tensor, alpha: float, group: dist.ProcessGroup | None = None, *, padding: int = 0
) -> Tensor:
    """q, the smallest x with at least a fraction alpha of the |d| at or below it (Eq. quantile): their k-th smallest,
    k = ceil(alpha n). One of the values, never an interpolation; 0 where there are none.

    Args:
        abs_log_ratio: (n,) |d| of the active tokens, of any floating dtype. Half precisions are widened, exactly.
        alpha: level in (0, 1].
        group: ranks that hold parts of the values, some of them perhaps none. All get the same q, to the bit that of
            a single process, for a number of bytes that does not depend on n.
        padding: how many of this rank's values are zeros that stand for inactive tokens; they do not count in n.

    Returns:
        0-dim, float32 or float64, on the values' device.

    Raises:
        ValueError: a value is NaN, or alpha is out of range. Across ranks all raise.
    """
    values = abs_log_ratio.detach().flatten().abs()
    values = values if values.dtype == torch.float64 else values.float()
    n, n_nan, padding = _counts(values, padding, group)
    if n_nan:
        raise ValueError(
            f"{n_nan} of {n} log-ratios are NaN: look for NaN or infinite log-probs among the active tokens"
        )
    rank = quantile_rank(alpha, n)
    if n == 0:
        return values.new_zeros(())
    rank += padding  # zeros come first
    if group is not None:
        return _kth_smallest_of_ranks(values, rank, group)
    if values.is_cuda:  # where torch refuses kthvalue under deterministic algorithms
        return values.topk(len(values) - rank + 1, sorted=False).values.amin()
    return values.kthvalue(rank).values


def _counts(values: Tensor, padding: int, group: dist.ProcessGroup | None) -> tuple[int, int, int]:
    """Values that count, NaNs and padding, over all ranks."""
    has_nan = len(values) > 0 and bool(values.amax().isnan())
    counts = [len(values) - padding, int(values.isnan().sum()) if has_nan else 0, padding]
    if group is not None:
        total = torch.tensor(counts, dtype=torch.int64, device=values.device)
        dist.all_reduce(total, group=group)
        counts = total.tolist()
    return counts[0], counts[1], counts[2]


def _kth_smallest_of_ranks(values: Tensor, k: int, group: dist.ProcessGroup) -> Tensor:
    """Radix selection: non-negative floats order as the integers of their bits, so each histogram of the next digit,
    summed over ranks, fixes that digit of the k-th smallest value, and only the values that share it stay."""
    pattern, width = (torch.int64, 63) if values.dtype == torch.float64 else (torch.int32, 31)
    bits = values.view(pattern)
    found = 0
    for shift in reversed(range(0, width, RADIX_BITS)):
        digits = (bits >> shift) & ((1 << RADIX_BITS) - 1)
        counts = torch.bincount(digits, minlength=1 << RADIX_BITS)
        dist.all_reduce(counts, group=group)
        at_most = counts.cumsum(0)
        digit = int(torch.searchsorted(at_most, k))
        k -= int(at_most[digit] - counts[digit])
        found = (found << RADIX_BITS) | digit
        bits = bits[digits == digit]
    return torch.tensor(found, dtype=pattern, device=values.device).view(values.dtype)


def contraction_factors(log_ratio: Tensor, q: Tensor | float, exponent: float = 2.0) -> tuple[Tensor, Tensor]:
    """Contraction of the lower and the upper radius, gate included (Eqs. kernel, gate).

    c = 1 / (1 + (|d| / q)^exponent) where q > 0 and |d| > q, on the side of sign(d); exactly 1 elsewhere.

    Args:
        log_ratio: (N,) d, detached.
        q: the tail quantile, 0-dim.

    Returns:
        c_low, c_high, each (N,).
    """
    return contraction(-log_ratio, q, exponent), contraction(log_ratio, q, exponent)


def contraction(mismatch: Tensor, q: Tensor | float, exponent: float = 2.0) -> Tensor:
    """(N,) gated kernel of one side (Eqs. kernel, gate): 1 / (1 + (u / q)^exponent) where u > q > 0, else 1."""
    bound = float(q)
    if bound <= 0:
        return torch.ones_like(mismatch)
    # threshold is strict and keeps the value: the gate and the positive part in one.
    tail = torch.nn.functional.threshold(mismatch, bound, 0.0).div_(bound)
    return tail.pow_(exponent).add_(1.0).reciprocal_()


def clip_ends(region: Clip | SAT | None) -> tuple[float, float]:
    """Ends of PPO's interval (Eq. ppo-objective); without a region, ends that never bind."""
    return (0.0, float("inf")) if region is None else (1.0 - region.eps_low, 1.0 + region.eps_high)


@stabilizer(
    "sat",
    "SAT",
    unit="token or sequence",
    discriminator="|d| and |r − 1|",
    constraint="adaptive clip interval",
    weight="{0, 1}",
    direction="asymmetric, adaptive",
    formula=(
        "S = min(r A, clip(r, 1 − ε_low c₋, 1 + ε_high c₊) A),  d = log r,  q the α-quantile of |d|,  "
        "c± = 1 / (1 + (|d|/q)^p) on the side of d where |d| > q, else 1"
    ),
    source="Eqs. quantile, kernel, gate, adaptive-eps, satr-clip, satrloss",
    needs="rollout log-probs; with TIS also the trainer's log-probs under the generating weights",
    excludes="bases without a clip interval (spo, drpo, trpo); denominator trainer at one step per rollout (d is 0)",
)
def contracted_ends(region: SAT, shrink: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) ends of SAT's interval (Eq. adaptive-eps) from shrink = 1 - c.

    Taken from PPO's ends by subtraction, so that c = 1 gives those to the bit, and never beyond 1.
    """
    low, high = clip_ends(region)
    return (
        shrink.mul(region.eps_low).add_(low).clamp_(max=1.0),
        shrink.mul(-region.eps_high).add_(high).clamp_(min=1.0),
    )


def scope_too_small(alpha: float, n_active: int, largest_unit: int) -> bool:
    """Whether the gate is bound to stay shut when the stalest unit is the largest one.

    A unit is the set of tokens that share one d: a token (largest_unit 1), or a response under the sequence ratio. At
    most n - ceil(alpha n) tokens lie strictly above q, so a unit of more tokens than that ties with q instead.
    """
    return largest_unit > n_active - quantile_rank(alpha, n_active)
