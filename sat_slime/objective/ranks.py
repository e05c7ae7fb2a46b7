"""Small objects of all ranks."""

from __future__ import annotations

from typing import Any

import torch


def gather(part: Any, group: torch.distributed.ProcessGroup | None) -> list[Any]:
    """The small object of every rank, in rank order."""
    if group is None:
        return [part]
    parts: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(parts, part, group=group)
    return parts
