"""Ranks learn from each other here: small objects of all of them, and sums that carry gradients."""

from __future__ import annotations

from typing import Any

import torch


def gather(part: Any, group: torch.distributed.ProcessGroup | None) -> list[Any]:
    """Return the small object of every rank, in rank order."""
    if group is None:
        return [part]
    parts: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(parts, part, group=group)
    return parts


def sum_of_ranks(values: torch.Tensor, group: torch.distributed.ProcessGroup | None) -> torch.Tensor:
    """Return the sum over the group's ranks, whose gradients are summed over them on the way back."""
    if group is None:
        return values
    from torch.distributed.nn.functional import all_reduce

    return all_reduce(values, group=group)
