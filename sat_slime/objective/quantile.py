"""Thresholds of a batch, exact across ranks: SAT's tail quantile (Eq. quantile), and M2PO's prefix by its mean.

Non-negative floats order as the integers of their bits. So a value is found digit by digit, 11 bits at a time, from
histograms of the digit that are summed over the ranks: for 49 kB a rank, whatever the number of tokens. NaN counts as
larger than any number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .terms import quantile_rank

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor

RADIX_BITS = 11
"""Bits of a digit: 16 KiB of counts per all-reduce, three digits to a float32."""
RADIX = 1 << RADIX_BITS


def tail_quantile(abs_log_ratio: Tensor, alpha: float, group: dist.ProcessGroup | None = None) -> Tensor:
    """q, the smallest x with at least a fraction alpha of the |d| at or below it (Eq. quantile): their k-th smallest,
    k = ceil(alpha n). One of the values, never an interpolation; 0 where there are none.

    Args:
        abs_log_ratio: (n,) |d| of the active tokens, not negative, of any floating dtype. Half precisions are widened,
            exactly.
        alpha: level in (0, 1].
        group: ranks that hold parts of the values, some of them perhaps none. All get the same q, to the bit that of
            a single process.

    Returns:
        0-dim, float32 or float64, on the values' device. Without `group` the host does not wait for it.

    Raises:
        ValueError: alpha is out of range.
    """
    values = abs_log_ratio.detach().flatten()
    values = values if values.dtype == torch.float64 else values.float()
    n = len(values)
    if group is not None:
        n = int(_sum(torch.tensor(n, device=values.device), group))
    rank = quantile_rank(alpha, n)
    if n == 0:
        return values.new_zeros(())
    if group is not None:
        return _walk(values, _by_count(group), rank)
    if values.is_cuda:  # where torch refuses kthvalue under deterministic algorithms
        return values.topk(n - rank + 1, sorted=False).values.amin()
    return values.kthvalue(rank).values


def _by_count(group: dist.ProcessGroup | None) -> Callable[[Tensor, Tensor, int], tuple[int, int]]:
    """The digit of the k-th smallest value, and its rank among those that share the digit."""

    def digit_of(digits: Tensor, _: Tensor, k: int) -> tuple[int, int]:
        counts = _sum(torch.bincount(digits, minlength=RADIX), group)
        at_most = counts.cumsum(0)
        digit = int(torch.searchsorted(at_most, k))
        return digit, k - int(at_most[digit] - counts[digit])

    return digit_of


def longest_prefix_end(values: Tensor, mean: float, group: dist.ProcessGroup | None = None) -> Tensor:
    """The largest of the values up to which, in ascending order, their mean is at most `mean`; equal values are taken
    together or not at all. 0 where not even the smallest ones fit, or there are none.

    Args:
        values: (n,) not negative, float32 or float64.
        mean: at least 0.
        group: ranks that hold parts of the values, some of them perhaps none. All get the same answer, that of a single
            process up to the last bits of the float64 sums.

    Returns:
        0-dim, of the values' dtype and device.
    """
    values = values.detach()
    n, total = _sum(torch.stack([values.new_tensor(len(values), dtype=torch.float64), values.double().sum()]), group)
    if total <= mean * n:
        return _largest(values, group)  # all of them fit

    def digit_of(digits: Tensor, part: Tensor, before: Tensor) -> tuple[int, Tensor]:
        """The first digit that does not fit; count and sum of what fits for sure."""
        counts = torch.bincount(digits, minlength=RADIX).double()
        # bincount with weights is refused on a GPU under deterministic algorithms
        totals = _sum(torch.stack([counts, torch.zeros_like(counts).index_add_(0, digits, part.double())]), group)
        up_to = before[:, None] + totals.cumsum(1)
        too_many = up_to[1] > mean * up_to[0]  # rises with the digit: the values are sorted by it
        too_many[-1] = True  # so it was found with the digit before, whatever the last bit of this sum says
        digit = int(too_many.to(torch.uint8).argmax())
        return digit, before + totals[:, :digit].sum(1)  # not up_to - totals: that is NaN where a value is infinite

    bound = _walk(values, digit_of, values.new_zeros(2, dtype=torch.float64))
    return _largest(values[values < bound], group)


def _walk(values: Tensor, digit_of: Callable[[Tensor, Tensor, Any], tuple[int, Any]], state: Any) -> Tensor:
    """Find a float by its bits, from the top.

    Args:
        digit_of: chooses the next digit, from the next digits of all values that share those before, these values, and
            its own state; returns it with the new state. The same on all ranks.
    """
    integers, width = (torch.int64, 63) if values.dtype == torch.float64 else (torch.int32, 31)
    bits, prefix = values.contiguous().view(integers), 0
    for shift in reversed(range(0, width, RADIX_BITS)):
        digits = (bits >> shift) & (RADIX - 1)
        digit, state = digit_of(digits, bits.view(values.dtype), state)
        prefix = (prefix << RADIX_BITS) | digit
        bits = bits[digits == digit]
    return torch.tensor(prefix, dtype=integers, device=values.device).view(values.dtype)


def _largest(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The largest of the values of all ranks, none of them negative; 0 where there is none."""
    largest = values.amax() if len(values) else values.new_zeros(())
    if group is not None:
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX, group=group)
    return largest


def _sum(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    if group is not None:
        torch.distributed.all_reduce(values, group=group)
    return values
