"""The tail quantile: one order statistic of |d|, exact across ranks (Eq. quantile)."""

from __future__ import annotations

from fractions import Fraction

import torch
import torch.distributed as dist
from torch import Tensor

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
