"""The ratio r = pi / denominator and d = log r, of tokens and of sequences (GSPO), and each denominator's log-probs.

`TokenBatch.proximal_log_probs` holds those of `checkpoint` and `trainer`. The runtimes measure them. Of `checkpoint`,
pi_l under the weights that generated: `embedded/trainer/scoring.py`; on slime `plugin/inside/generating_weights.py`.
"""

from __future__ import annotations

from typing import Literal

import torch

from .batch import TokenBatch, per_token, segment_sums
from .ranks import sum_of_ranks

Ratio = Literal["token", "sequence"]
"""token: each token's own ratio; sequence: their geometric mean over the response (Eq. gspo-ratio)."""
Denominator = Literal["rollout", "checkpoint", "trainer", "a3po"]

DENOMINATORS: dict[Denominator, str] = {
    "rollout": "μ, the log-prob that the engine sampled with (Eqs. ratio-def, app-rollout-lp)",
    "checkpoint": "π_l, the trainer under the weights that generated the batch (Eq. split)",
    "trainer": "the trainer at the start of the step; identically 1 at one optimizer step per rollout",
    "a3po": "A-3PO's: between μ and π by the lag of the token, without a forward pass",
}
"""The meaning of each denominator of the ratio."""
MAX_LOG_RATIO = 40.0
"""Ratios saturate at e^40, with zero gradient beyond: the square still fits float32, so that a token with a broken
log-prob gives a large finite value and no NaN. No sound batch comes near it."""
MAX_LOG = 1000.0
"""Logarithms that stand outside an exponential count no further than plus and minus this, for the same reason."""


def denominator_log_probs(denominator: Denominator, batch: TokenBatch) -> torch.Tensor:
    """Return the (N,) log-probs of the denominator, detached.

    `trainer` without proximal_log_probs is the training forward itself, detached: the ratio is 1, which is exact at
    one optimizer step per rollout and spares a forward pass.

    Raises:
        ValueError: denominator `checkpoint` without proximal_log_probs.
    """
    if denominator == "rollout":
        return batch.rollout_log_probs.detach()
    return proximal_log_probs(denominator, batch)


def proximal_log_probs(denominator: Denominator, batch: TokenBatch) -> torch.Tensor:
    """Return the (N,) log-probs of pi_proximal, the trainer's policy that TIS, IcePop and KPop hold against mu,
    detached: the denominator where that is not mu, else the policy in training.

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
    ratio: Ratio, denominator: Denominator, batch: TokenBatch, group: torch.distributed.ProcessGroup | None = None
) -> torch.Tensor:
    """Return (N,) d = log r (Eq. ratio-def, Eq. gspo-ratio), with gradient; 0 on inactive tokens."""
    token = batch.active_or_zero(batch.log_probs - denominator_log_probs(denominator, batch))
    return token if ratio == "token" else sequence_mean(token, batch, group)


def bounded_ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return (N,) r = e^d, saturated at e^MAX_LOG_RATIO."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def sequence_mean(
    values: torch.Tensor, batch: TokenBatch, group: torch.distributed.ProcessGroup | None = None
) -> torch.Tensor:
    """Return the (N,) mean over the active tokens of each response, broadcast to them; 0 on inactive tokens.

    Sums are taken in float64, so that neither long responses nor the way a response is split over context-parallel
    ranks shows in the result. The gradient is that of the sum of all ranks' losses.
    """
    lengths = batch.lengths_tensor
    sums = sum_of_ranks(segment_sums(batch.active_or_zero(values), lengths), group)
    means = sums / response_lengths(batch, group).clamp(min=1)
    # Each token takes its mean before the dtype narrows, so that the gradients of a response add up in float64 too.
    return batch.active_or_zero(per_token(means, lengths, len(values)).to(values.dtype))


def sequence_sum(
    values: torch.Tensor, batch: TokenBatch, group: torch.distributed.ProcessGroup | None = None
) -> torch.Tensor:
    """Return the (N,) sum over the active tokens of each response, broadcast to them; 0 on inactive tokens. Sums are
    taken in float64, as those of sequence_mean."""
    lengths = batch.lengths_tensor
    with torch.no_grad():
        sums = sum_of_ranks(segment_sums(batch.active_or_zero(values), lengths), group).to(values.dtype)
        return batch.active_or_zero(per_token(sums, lengths, len(values)))


def sequence_max(
    values: torch.Tensor, batch: TokenBatch, group: torch.distributed.ProcessGroup | None = None
) -> torch.Tensor:
    """Return the (N,) largest value at the active tokens of each response, broadcast to them; 0 on inactive tokens."""
    lengths = batch.lengths_tensor
    with torch.no_grad():
        low = torch.where(batch.mask, values, -torch.inf)
        largest = torch.segment_reduce(low, "max", lengths=lengths, unsafe=True)  # -inf for a response without tokens
        if group is not None:
            torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX, group=group)
        return batch.active_or_zero(per_token(largest, lengths, len(values)))


def response_lengths(batch: TokenBatch, group: torch.distributed.ProcessGroup | None = None) -> torch.Tensor:
    """Return the (responses,) float64: active tokens of each response, over the ranks that share it."""
    return sum_of_ranks(batch.active_lengths, group)
