"""Thresholds of a batch, exact across ranks: the tail quantile (Eq. quantile), and the end of a prefix by its mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import torch

RADIX_BITS = 11
"""Bits of the float pattern that one histogram resolves: 16 KiB of counts per all-reduce, three to a float32."""
RADIX = 1 << RADIX_BITS
LEADING_BITS = 16
"""Bits of a float64's pattern by which `tail_quantiles` counts values first: bins 3 % wide, so that few values share
that of a quantile."""


def quantile_rank(alpha: float, n: int) -> int:
    """k = ceil(alpha n), exact for the decimal that alpha was written as: 0.9 of 10 is 9, 0.7 of 10 is 7.

    Raises:
        ValueError: alpha is not in (0, 1].
    """
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha is {alpha}: the quantile's level is in (0, 1]")
    return -(-Fraction(str(alpha)) * n // 1)


def tail_quantile(
    abs_log_ratio: torch.Tensor, alpha: float, group: torch.distributed.ProcessGroup | None = None
) -> torch.Tensor:
    """q, the smallest x with at least a fraction alpha of the |d| at or below it (Eq. quantile): their k-th smallest,
    k = ceil(alpha n). One of the values, never an interpolation; 0 where there are none.

    Args:
        abs_log_ratio: (n,) |d| of the active tokens, of any floating dtype. Half precisions are widened, exactly.
        alpha: level in (0, 1].
        group: ranks that hold parts of the values, some of them perhaps none. All get the same q, to the bit that of
            a single process, for a number of bytes that does not depend on n.

    Returns:
        0-dim, float32 or float64, on the values' device.

    Raises:
        ValueError: a value is NaN, or alpha is out of range. Across ranks all raise.
    """
    values = abs_log_ratio.detach().flatten().abs()
    values = values if values.dtype == torch.float64 else values.float()
    n, n_nan = _counts(values, group)
    if n_nan:
        raise ValueError(nan_error(n_nan, n))
    rank = quantile_rank(alpha, n)
    if n == 0:
        return values.new_zeros(())
    if group is not None:
        return _kth_smallest_of_ranks(values, rank, group)
    if values.is_cuda:  # where torch refuses kthvalue under deterministic algorithms
        return values.topk(len(values) - rank + 1, sorted=False).values.amin()
    return values.kthvalue(rank).values


def nan_error(n_nan: int, n: int) -> str:
    """Return what is said of log-ratios of which some are NaN."""
    return f"{n_nan} of {n} log-ratios are NaN: look for NaN or infinite log-probs among the active tokens"


def tail_quantiles(
    parts: Callable[[], Iterable[torch.Tensor]],
    alphas: Sequence[float],
    group: torch.distributed.ProcessGroup | None = None,
) -> list[float]:
    """Return the `tail_quantile` of several levels, to the bit, of values that come in parts: in two passes over them,
    and in little memory beside a part, however many there are.

    Args:
        parts: each call gives the values anew, float64, none of them negative or NaN; at least one part, if an empty
            one.
        alphas: levels in (0, 1].
        group: ranks that hold parts of the values. All must call.
    """
    counts = sum(torch.bincount(_leading(part), minlength=1 << LEADING_BITS) for part in parts())
    assert isinstance(counts, torch.Tensor), "there is a part"
    if group is not None:
        torch.distributed.all_reduce(counts, group=group)
    counts = counts.cpu()
    at_most = counts.cumsum(0)
    n = int(at_most[-1])
    if n == 0:
        return [0.0] * len(alphas)
    ranks = [quantile_rank(alpha, n) for alpha in alphas]
    bins = [int(torch.searchsorted(at_most, rank)) for rank in ranks]
    candidates: dict[int, list[torch.Tensor]] = {bin_: [] for bin_ in bins}
    for part in parts():
        leading = _leading(part)
        for bin_, found in candidates.items():
            found.append(part[leading == bin_])
    quantiles = []
    for rank, bin_ in zip(ranks, bins, strict=True):
        k = rank - int(at_most[bin_] - counts[bin_])
        values = torch.cat(candidates[bin_])
        kth = values.sort().values[k - 1] if group is None else _kth_smallest_of_ranks(values, k, group)
        quantiles.append(float(kth))
    return quantiles


def _leading(values: torch.Tensor) -> torch.Tensor:
    """Return the leading bits of the values' patterns, without the sign."""
    return values.view(torch.int64) >> (63 - LEADING_BITS)


def _counts(values: torch.Tensor, group: torch.distributed.ProcessGroup | None) -> tuple[int, int]:
    """Return the values and NaNs among them, over all ranks."""
    has_nan = len(values) > 0 and bool(values.amax().isnan())
    counts = [len(values), int(values.isnan().sum()) if has_nan else 0]
    if group is not None:
        total = torch.tensor(counts, dtype=torch.int64, device=values.device)
        torch.distributed.all_reduce(total, group=group)
        counts = total.tolist()
    return counts[0], counts[1]


def longest_prefix_end(
    values: torch.Tensor, mean: float, group: torch.distributed.ProcessGroup | None = None
) -> torch.Tensor:
    """Return the largest of the values up to which, in ascending order, their mean is at most `mean`; equal values are
    taken together or not at all. 0 where not even the smallest ones fit, or there are none.

    Args:
        values: (n,) not negative, float32 or float64.
        mean: at least 0.
        group: ranks that hold parts of the values, some of them perhaps none. All get the same answer, that of a single
            process up to the last bits of the float64 sums, for a number of bytes that does not depend on n.

    Returns:
        0-dim, of the values' dtype and device.

    Raises:
        ValueError: a value is NaN. Across ranks all raise.
    """
    values = values.detach()
    n, n_nan = _counts(values, group)
    if n_nan:
        raise ValueError(f"{n_nan} of {n} values are NaN: look for NaN or infinite log-probs among the active tokens")
    pattern, width = _pattern(values)
    bits = values.contiguous().view(pattern)
    before = values.new_zeros(2, dtype=torch.float64)  # count and sum of the values that fit for sure
    prefix = 0  # the least pattern that does not fit
    first, *_ = shifts = [*reversed(range(0, width, RADIX_BITS))]
    for shift in shifts:
        digits = (bits >> shift) & (RADIX - 1)
        counts = torch.bincount(digits, minlength=RADIX).double()
        # bincount with weights is refused on a GPU under deterministic algorithms
        sums = torch.zeros_like(counts).index_add_(0, digits, bits.view(values.dtype).double())
        totals = torch.stack([counts, sums])
        if group is not None:
            torch.distributed.all_reduce(totals, group=group)
        up_to = before[:, None] + totals.cumsum(1)
        too_many = up_to[1] > mean * up_to[0]  # rises with the digit: the values are sorted by it
        if shift == first and not bool(too_many[-1]):
            return _largest(values, group)  # all of them fit
        too_many[-1] = True  # so it was found with the digit before, whatever the last bit of this sum says
        digit = int(too_many.to(torch.uint8).argmax())
        before = before + totals[:, :digit].sum(1)  # not up_to - totals: that is NaN where a value is infinite
        prefix = (prefix << RADIX_BITS) | digit
        bits = bits[digits == digit]
    bound = torch.tensor(prefix, dtype=pattern, device=values.device).view(values.dtype)
    return _largest(values[values < bound], group)


def _largest(values: torch.Tensor, group: torch.distributed.ProcessGroup | None) -> torch.Tensor:
    """Return the largest of the values of all ranks, none of them negative; 0 where there is none."""
    largest = values.amax() if len(values) else values.new_zeros(())
    if group is not None:
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX, group=group)
    return largest


def _pattern(values: torch.Tensor) -> tuple[torch.dtype, int]:
    """Return (integers, bits that matter) of the values' bit pattern: non-negative floats order as the integers of
    it."""
    return (torch.int64, 63) if values.dtype == torch.float64 else (torch.int32, 31)


def _kth_smallest_of_ranks(values: torch.Tensor, k: int, group: torch.distributed.ProcessGroup) -> torch.Tensor:
    """Radix selection: each histogram of the next digit, summed over ranks, fixes that digit of the k-th smallest
    value, and only the values that share it stay."""
    pattern, width = _pattern(values)
    bits = values.view(pattern)
    prefix = 0
    for shift in reversed(range(0, width, RADIX_BITS)):
        digits = (bits >> shift) & (RADIX - 1)
        counts = torch.bincount(digits, minlength=RADIX)
        torch.distributed.all_reduce(counts, group=group)
        at_most = counts.cumsum(0)
        digit = int(torch.searchsorted(at_most, k))
        k -= int(at_most[digit] - counts[digit])
        prefix = (prefix << RADIX_BITS) | digit
        bits = bits[digits == digit]
    return torch.tensor(prefix, dtype=pattern, device=values.device).view(values.dtype)
