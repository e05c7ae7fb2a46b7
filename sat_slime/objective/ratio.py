"""Log-ratios: token and sequence, and the policies below them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .batch import TokenBatch, per_token, segment_sums
from .method import Denominator, Method
from .stabilizer import stabilizer

DENOMINATORS: dict[Denominator, str] = {
    "rollout": "μ, the log-prob that the engine sampled with (Eqs. ratio-def, app-rollout-lp)",
    "checkpoint": "π_l, the trainer under the weights that generated the batch (Eq. split)",
    "trainer": "the trainer at the start of the step; identically 1 at one optimizer step per rollout",
}
"""What each policy below the ratio is."""


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


@stabilizer(
    "gspo",
    "GSPO",
    unit="sequence",
    discriminator="|ρ − 1|",
    constraint="sequence clip",
    weight="{0, 1}",
    direction="asymmetric",
    formula="S = min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A),  ρ = exp(mean over the response of log r)",
    source="Eqs. gspo-ratio, app-gspo, app-gspo-loss",
    needs="rollout log-probs",
    excludes="nothing",
)
def sequence_mean(values: Tensor, batch: TokenBatch, group: dist.ProcessGroup | None = None) -> Tensor:
    """(N,) mean over the active tokens of each response, broadcast to them; 0 on inactive tokens.

    Sums are taken in float64, so that neither long responses nor the way a response is split over context-parallel
    ranks shows in the result. The gradient is that of the sum of all ranks' losses.
    """
    return _SequenceMean.apply(values, batch, group)


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
