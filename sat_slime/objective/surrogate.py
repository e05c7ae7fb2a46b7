"""policy_surrogate: what each token adds to the objective, under any method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from .batch import TokenBatch
from .batch_view import BatchView
from .clip import Clipped, bounded_ratio, clipped_surrogate
from .method import Method
from .quantile import tail_quantile
from .ratio import log_ratio
from .stabilizers.ppo import clip_ends, dual_clip
from .stabilizers.sat import SAT, contract, sat_metrics, scope_is_too_small


@dataclass(frozen=True, eq=False)
class Surrogate:
    """What policy_surrogate returns."""

    values: Tensor
    """(N,) S, to be maximized; carries the gradient; 0 on inactive tokens."""
    clipped: Tensor
    """(N,) bool: tokens whose gradient the clip interval takes away."""
    metrics: dict[str, Tensor]
    """Name to 0-dim tensor, detached: fractions and means over this rank's active tokens of the micro-batch."""


def policy_surrogate(
    method: Method,
    batch: TokenBatch,
    *,
    group: dist.ProcessGroup | None = None,
    quantile: Tensor | float | None = None,
    d: Tensor | None = None,
) -> Surrogate:
    """The sampled surrogate S of each token (Eqs. ppo-objective, satrloss, app-spo, app-drpo), times gates and weights.

    Args:
        method: the objective.
        batch: one micro-batch of N tokens.
        group: context-parallel ranks that hold parts of the same responses, in the same order. The quantile is over all
            of them, and so are the sequence means; gradients are those of the sum of all ranks' losses.
        quantile: q where it is already known, as under scope `step`. Unset: taken over the given tokens and `group`.
        d: (N,) log-ratio of the method, with its gradient, where the caller has taken it by its own order of sums;
            read on active tokens only. Unset: taken here.

    Raises:
        ValueError: the method wants what the batch lacks, combines a penalty with a clip, or SAT meets a NaN.
    """
    if method.penalty is not None and (method.trust_region is not None or method.sat):
        raise ValueError(f"{method.name}: a penalty replaces the clip; set trust_region to None, and leave SAT out")
    batch = batch.promoted()
    d = log_ratio(method.ratio, method.denominator, batch, group) if d is None else batch.active_or_zero(d)
    advantages = batch.active_or_zero(batch.advantages.detach())
    view = BatchView(batch, method.denominator, d, advantages, group)
    factor, factor_metrics = _gates_and_weights(method, batch, view)

    metrics: dict[str, Tensor]
    if method.penalty is not None:
        values, clipped, metrics = method.penalty.surrogate(bounded_ratio(d), view), torch.zeros_like(batch.mask), {}
    else:
        if method.sat and method.trust_region:
            held, metrics = _contracted(method.sat, method, batch, view, d, quantile, factor)
        else:
            held = clipped_surrogate(d, advantages, *clip_ends(method.trust_region))
            metrics = batch.active_means(held.sums(advantages))
        values, clipped = held.values, held.cut.bool()
        if method.trust_region and method.trust_region.dual is not None:
            values, bounded = dual_clip(method.trust_region.dual, values, advantages)
            metrics |= batch.active_means({"clip/dual": bounded.sum()})
    if factor is not None:
        values = values * factor
    return Surrogate(values, clipped, metrics | factor_metrics)


def staleness_score(method: Method, batch: TokenBatch, *, group: dist.ProcessGroup | None = None) -> Tensor:
    """(N,) detached d that SAT's quantile is taken of (Eq. satr-d): the token's, or its response's under the sequence
    ratio; 0 on inactive tokens.

    For scope `step`: a pass without gradient collects |d| of the active tokens of every micro-batch, and
    `tail_quantile(..., group=data-parallel ranks)` of them is `quantile` of policy_surrogate.
    """
    with torch.no_grad():
        return log_ratio(method.ratio, method.denominator, batch.promoted(), group)


@torch.no_grad()
def _gates_and_weights(method: Method, batch: TokenBatch, view: BatchView) -> tuple[Tensor | None, dict[str, Tensor]]:
    """(N,) product of the gates and the weights, and their metrics; None where the method has neither."""
    factor: Tensor | None = None
    metrics: dict[str, Tensor] = {}
    for gate in method.gates:
        kept = batch.active_or_zero(gate.factor(view))
        view.check_unwritten(gate.name)
        masked = batch.mask & (kept == 0)
        metrics |= batch.active_means({f"{gate.name}/masked": masked.sum()})
        factor = kept if factor is None else factor * kept
    for weight in method.weights:
        weights = batch.active_or_zero(weight.factor(view))
        view.check_unwritten(weight.name)
        metrics |= batch.active_means(weight.sums(weights))
        factor = weights if factor is None else factor * weights
    return factor, metrics


def _contracted(
    sat: SAT,
    method: Method,
    batch: TokenBatch,
    view: BatchView,
    d: Tensor,
    quantile: Tensor | float | None,
    factor: Tensor | None,
) -> tuple[Clipped, dict[str, Tensor]]:
    """The surrogate on SAT's interval (Eqs. quantile, satr-clip, satrloss), with sat/* and clip/*."""
    clip = method.trust_region
    assert clip is not None, "there is an interval"
    stale, metrics = view.d.abs(), {}
    if quantile is None:
        q = tail_quantile(stale, sat.alpha, view.group, padding=len(stale) - batch.n_active)
        metrics["sat/scope_too_small"] = scope_is_too_small(sat, method.ratio, batch, view.group)
    else:
        q = torch.as_tensor(quantile, dtype=d.dtype, device=d.device)
    interval = contract(sat, clip, stale, q)
    held = clipped_surrogate(d, view.advantages, interval.low, interval.high)
    return held, metrics | sat_metrics(interval, clip, batch, view, held, factor)
