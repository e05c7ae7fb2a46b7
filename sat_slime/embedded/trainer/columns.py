"""What a step measured of each token, by the names of token dumps, and its way to one rank."""

from __future__ import annotations

import numpy as np
import torch.distributed as dist
from torch import Tensor

from sat_slime.embedded.trainer.packing import MicroBatch

Columns = dict[str, Tensor]
"""One tensor (tokens, ...) for each name."""


def gather_columns(
    columns: Columns, microbatches: list[MicroBatch], order: list[str], group: dist.ProcessGroup
) -> dict[str, np.ndarray] | None:
    """The columns of all ranks' tokens in batch order.

    Args:
        columns: (n, ...) each, of this rank's tokens.
        microbatches: this rank's, whose responses these tokens are of.
        order: request ids of the whole step.

    Returns:
        (N, ...) each on rank 0, None on others.
    """
    lengths = [length for micro in microbatches for length in micro.lengths]
    ids = [request_id for micro in microbatches for request_id in micro.request_ids]
    ends = np.cumsum(lengths)[:-1]
    cut = {name: np.split(values.detach().cpu().numpy(), ends) for name, values in columns.items()}
    mine = {request_id: {name: pieces[i] for name, pieces in cut.items()} for i, request_id in enumerate(ids)}
    parts: list[dict[str, dict[str, np.ndarray]]] = [{}] * group.size()
    dist.all_gather_object(parts, mine, group=group)
    if dist.get_rank():
        return None
    responses = {request_id: found for part in parts for request_id, found in part.items()}
    return {name: np.concatenate([responses[request_id][name] for request_id in order]) for name in columns}
