"""Thresholds of a batch, exact across ranks: SAT's tail quantile (Eq. quantile), and M2PO's prefix by its mean.

Each rank gathers the values of all, 4 or 8 bytes a token and some times that while it looks, and finds what one
process would. NaN counts as larger than any number.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from .terms import quantile_rank


def gathered(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """(n,) values of all ranks of `group`, in rank order, from those of each, some of them perhaps none."""
    if group is None:
        return values
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    lengths = torch.zeros(world, dtype=torch.int64, device=values.device)
    lengths[rank] = len(values)
    dist.all_reduce(lengths, group=group)
    rows = values.new_zeros(world, int(lengths.max()))
    rows[rank, : len(values)] = values
    dist.all_reduce(rows, group=group)  # one number and zeros: exact
    return torch.cat([row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)])


def tail_quantile(abs_log_ratio: Tensor, alpha: float, group: dist.ProcessGroup | None = None) -> Tensor:
    """q, the smallest x with at least a fraction alpha of the |d| at or below it (Eq. quantile): their k-th smallest,
    k = ceil(alpha n). One of the values, never an interpolation; 0 where there are none.

    Args:
        abs_log_ratio: (n,) |d| of the active tokens, of any floating dtype. Half precisions are widened, exactly.
        alpha: level in (0, 1].
        group: ranks that hold parts of the values, some of them perhaps none. All get the same q, to the bit that of
            a single process.

    Returns:
        0-dim, float32 or float64, on the values' device. Without `group` the host does not wait for it.

    Raises:
        ValueError: alpha is out of range.
    """
    values = abs_log_ratio.detach().flatten()
    values = gathered(values if values.dtype == torch.float64 else values.float(), group)
    n = len(values)
    rank = quantile_rank(alpha, n)
    if n == 0:
        return values.new_zeros(())
    if values.is_cuda:  # where torch refuses kthvalue under deterministic algorithms
        return values.topk(n - rank + 1).values[-1]  # NaN stands first
    return values.kthvalue(rank).values


def longest_prefix_end(values: Tensor, mean: float, group: dist.ProcessGroup | None = None) -> Tensor:
    """The largest of the values up to which, in ascending order, their mean is at most `mean`; equal values are taken
    together or not at all. 0 where not even the smallest ones fit, or there are none.

    Args:
        values: (n,) not negative, float32 or float64.
        mean: at least 0.
        group: ranks that hold parts of the values, some of them perhaps none. All get the answer of a single process.

    Returns:
        0-dim, of the values' dtype and device.
    """
    values = gathered(values.detach(), group).sort().values
    # On a GPU cumsum of floats has no order of its own under deterministic algorithms: the host adds.
    sums = values.cpu().double().cumsum(0).to(values.device)
    counts = torch.arange(1, len(values) + 1, dtype=torch.float64, device=values.device)
    fits = sums <= mean * counts
    fits[:-1] &= values[1:] != values[:-1]
    return torch.cat([values.new_zeros(1), values.where(fits, 0.0)]).amax()
