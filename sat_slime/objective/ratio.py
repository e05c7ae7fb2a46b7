"""Log-ratios: token and sequence, and the policies below them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .batch import TokenBatch
from .method import Method


def denominator_log_probs(method: Method, batch: TokenBatch) -> Tensor:
    """(N,) log-probs of the policy below the ratio, detached.

    `trainer` without proximal_log_probs is the training forward itself, detached: the ratio is 1, which is exact at
    one optimizer step per rollout and spares a forward pass.

    Raises:
        ValueError: denominator `checkpoint` without proximal_log_probs.
    """
    if method.denominator == "rollout":
        return batch.rollout_log_probs.detach()
    return proximal_log_probs(method, batch)


def proximal_log_probs(method: Method, batch: TokenBatch) -> Tensor:
    """(N,) log-probs of the trainer that stands against mu in TIS, IcePop and KPop, detached: the denominator where
    that is not mu, else the policy in training.

    Raises:
        ValueError: denominator `checkpoint` without proximal_log_probs.
    """
    if method.denominator == "rollout":
        return batch.log_probs.detach()
    if batch.proximal_log_probs is not None:
        return batch.proximal_log_probs.detach()
    if method.denominator == "checkpoint":
        raise ValueError(
            f"{method.name}: denominator checkpoint needs proximal_log_probs, the trainer's log-probs under the "
            "weights that generated the batch"
        )
    return batch.log_probs.detach()


def log_ratio(method: Method, batch: TokenBatch, group: dist.ProcessGroup | None = None) -> Tensor:
    """(N,) d = log r of the method (Eq. ratio-def, Eq. gspo-ratio), with gradient; 0 on inactive tokens."""
    token = batch.active_or_zero(batch.log_probs - denominator_log_probs(method, batch))
    return token if method.ratio == "token" else sequence_mean(token, batch, group)


def engine_log_ratio(method: Method, batch: TokenBatch) -> Tensor:
    """(N,) detached log of pi_proximal / mu, the mismatch that TIS and IcePop read; 0 on inactive tokens."""
    return batch.active_or_zero(proximal_log_probs(method, batch) - batch.rollout_log_probs)


def sequence_mean(values: Tensor, batch: TokenBatch, group: dist.ProcessGroup | None = None) -> Tensor:
    """(N,) mean over the active tokens of each response, broadcast to them; 0 on inactive tokens.

    `values` is 0 on inactive tokens. Sums are taken in float64, so that neither long responses nor the way a response
    is split over context-parallel ranks shows in the result.
    """
    index = batch.response_index
    sums = values.new_zeros(len(batch.lengths_tensor), dtype=torch.float64).index_add(0, index, values.double())
    counts = batch.active_lengths.clamp(min=1)
    if group is not None:
        sums = _AllReduceSum.apply(sums, group)
        counts = response_lengths(batch, group).clamp(min=1)
    return batch.active_or_zero((sums / counts).to(values.dtype)[index])


def response_lengths(batch: TokenBatch, group: dist.ProcessGroup | None = None) -> Tensor:
    """(responses,) int64: active tokens of each response, over the ranks that share it."""
    if group is None:
        return batch.active_lengths
    counts = batch.active_lengths.clone()
    dist.all_reduce(counts, group=group)
    return counts


class _AllReduceSum(torch.autograd.Function):
    """Sum over ranks; backward sums the gradients, so that each rank holds that of the sum of all ranks' losses."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        total = grads[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None
