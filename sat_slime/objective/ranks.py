"""Small objects of all ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def gather(part: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """The small object of every rank, in rank order."""
    if group is None:
        return [part]
    parts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, part, group=group)
    return parts
