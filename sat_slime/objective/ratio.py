"""Log-ratios, of tokens and of sequences, and the log-probs of their denominators."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from .batch import TokenBatch, per_token, segment_sums

Ratio = Literal["token", "sequence"]
"""token: each token's own ratio; sequence: their geometric mean over the response (Eq. gspo-ratio)."""
Denominator = Literal["rollout", "checkpoint", "trainer", "a3po"]

DENOMINATORS: dict[Denominator, str] = {
    "rollout": "μ, the log-prob that the engine sampled with (Eqs. ratio-def, app-rollout-lp)",
    "checkpoint": "π_l, the trainer under the weights that generated the batch (Eq. split)",
    "trainer": "the trainer at the start of the step; identically 1 at one optimizer step per rollout",
    "a3po": "A-3PO's: between μ and π by the lag of the token, without a forward pass",
}
"""What each denominator of the ratio is."""


def denominator_log_probs(denominator: Denominator, batch: TokenBatch) -> Tensor:
    """(N,) log-probs of the denominator, detached.

    `trainer` without proximal_log_probs is the training forward itself, detached: the ratio is 1, which is exact at
    one optimizer step per rollout and spares a forward pass.

    Raises:
        ValueError: denominator `checkpoint` without proximal_log_probs.
    """
    if denominator == "rollout":
        return batch.rollout_log_probs.detach()
    return proximal_log_probs(denominator, batch)


def proximal_log_probs(denominator: Denominator, batch: TokenBatch) -> Tensor:
    """(N,) log-probs of pi_proximal, the trainer's policy that TIS, IcePop and KPop hold against mu, detached: the
    denominator where that is not mu, else the policy in training.

    Raises:
        ValueError: denominator `checkpoint` without proximal_log_probs.
    """
    if denominator == "rollout":
        return batch.log_probs.detach()
    if batch.proximal_log_probs is not None:
        return batch.proximal_log_probs.detach()
    if denominator == "a3po":
        raise ValueError("denominator a3po needs proximal_log_probs: take them from supply_proximal(method, batch)")
    if denominator == "checkpoint":
        raise ValueError(
            "denominator checkpoint needs proximal_log_probs, the trainer's log-probs under the weights that "
            "generated the batch"
        )
    return batch.log_probs.detach()


def log_ratio(
    ratio: Ratio, denominator: Denominator, batch: TokenBatch, group: dist.ProcessGroup | None = None
) -> Tensor:
    """(N,) d = log r (Eq. ratio-def, Eq. gspo-ratio), with gradient; 0 on inactive tokens."""
    token = batch.active_or_zero(batch.log_probs - denominator_log_probs(denominator, batch))
    return token if ratio == "token" else sequence_mean(token, batch, group)


def sequence_mean(values: Tensor, batch: TokenBatch, group: dist.ProcessGroup | None = None) -> Tensor:
    """(N,) mean over the active tokens of each response, broadcast to them; 0 on inactive tokens.

    Sums are taken in float64, so that neither long responses nor the way a response is split over context-parallel
    ranks shows in the result. The gradient is that of the sum of all ranks' losses.
    """
    return _SequenceMean.apply(values, batch, group)


@torch.no_grad()
def sequence_sum(values: Tensor, batch: TokenBatch, group: dist.ProcessGroup | None = None) -> Tensor:
    """(N,) sum over the active tokens of each response, broadcast to them; 0 on inactive tokens. Sums are taken in
    float64, as those of sequence_mean."""
    lengths = batch.lengths_tensor
    sums = _sum_of_ranks(segment_sums(batch.active_or_zero(values), lengths), group).to(values.dtype)
    return batch.active_or_zero(per_token(sums, lengths, len(values)))


@torch.no_grad()
def sequence_max(values: Tensor, batch: TokenBatch, group: dist.ProcessGroup | None = None) -> Tensor:
    """(N,) largest value at the active tokens of each response, broadcast to them; 0 on inactive tokens."""
    lengths = batch.lengths_tensor
    low = torch.where(batch.mask, values, -torch.inf)
    largest = torch.segment_reduce(low, "max", lengths=lengths, unsafe=True)  # -inf for a response without tokens
    if group is not None:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    return batch.active_or_zero(per_token(largest, lengths, len(values)))


def response_lengths(batch: TokenBatch, group: dist.ProcessGroup | None = None) -> Tensor:
    """(responses,) float64: active tokens of each response, over the ranks that share it."""
    return _sum_of_ranks(batch.active_lengths, group)


class _SequenceMean(torch.autograd.Function):
    """Averaging within responses is its own transpose: backward averages the gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, batch: TokenBatch, group: dist.ProcessGroup | None) -> Tensor:
        ctx.batch, ctx.group = batch, group
        return _average(values, batch, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        return _average(grads[0], ctx.batch, ctx.group), None, None


def _average(values: Tensor, batch: TokenBatch, group: dist.ProcessGroup | None) -> Tensor:
    lengths = batch.lengths_tensor
    sums = _sum_of_ranks(segment_sums(batch.active_or_zero(values), lengths), group)
    means = (sums / response_lengths(batch, group).clamp(min=1)).to(values.dtype)
    return batch.active_or_zero(per_token(means, lengths, len(values)))


def _sum_of_ranks(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    if group is None:
        return values
    total = values.clone()
    dist.all_reduce(total, group=group)
    return total
