"""policy_surrogate: what each token adds to the objective, under any method."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from .batch import TokenBatch
from .batch_view import BatchView
from .method import Method
from .ratio import MAX_LOG, bounded_ratio, log_ratio
from .stabilizer import PolicyTerms, Replacement
from .stabilizers.clips.ppo import Radii, base_radii, clipped_surrogate, cut_counts, dual_clip, is_cut
from .stabilizers.clips.sat import radii, sat_metrics, scope_is_too_small


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The surrogate of a micro-batch, as policy_surrogate returns it."""

    values: torch.Tensor
    """(N,) S, to be maximized; carries the gradient; 0 on inactive tokens."""
    clipped: torch.Tensor
    """(N,) bool: tokens whose gradient the clip interval takes away."""
    metrics: dict[str, torch.Tensor]
    """Name to 0-dim tensor, detached: fractions and means over this rank's active tokens of the micro-batch."""


def policy_surrogate(
    method: Method,
    batch: TokenBatch,
    *,
    group: torch.distributed.ProcessGroup | None = None,
    quantile: torch.Tensor | float | None = None,
    d: torch.Tensor | None = None,
    radius_scale: float = 1.0,
) -> Surrogate:
    """Return the sampled surrogate S of each token (Eqs. ppo-objective, satrloss, app-spo, app-drpo), times gates and
    weights.

    Args:
        method: the objective.
        batch: one micro-batch of N tokens.
        group: context-parallel ranks that hold parts of the same responses, in the same order. The threshold is over
            all of them, and so are the sequence means; gradients are those of the sum of all ranks' losses.
        quantile: the threshold of the method's judge (SAT's q, M2PO's) where it is already known, as under scope
            `step`. Unset: taken over the given tokens and `group`.
        d: (N,) log-ratio of the method, with its gradient, where the caller has taken it by its own order of sums;
            read on active tokens only. Unset: taken here.
        radius_scale: the factor of the method's RadiusControl on the clip radii.

    Raises:
        ValueError: the method wants what the batch lacks, combines what replaces the clip with a clip, or its judge
            meets a NaN.
    """
    instead = method.replacement
    if method.no_interval and (method.trust_region is not None or method.sat or method.radius_policy):
        raise ValueError(
            f"{method.name}: {method.no_interval}, so it has no interval: set trust_region to None, and leave SAT and "
            "radius policies out"
        )
    batch = supply_proximal(method, batch.promoted())
    d = log_ratio(method.ratio, method.denominator, batch, group) if d is None else batch.active_or_zero(d)
    view = _view(method, batch, d, group)
    view.threshold, view.radius_scale = _threshold(method, view, quantile), radius_scale
    factor, factor_metrics = _gates_and_weights(method, batch, view)

    metrics: dict[str, torch.Tensor]
    if instead is not None:
        values, clipped = instead.values(_policy_terms(batch, d), view), torch.zeros_like(batch.mask)
        values, metrics = batch.active_or_zero(values), _own_metrics(instead, batch, view)
    else:
        clip, r, A = method.trust_region, bounded_ratio(d), view.advantages
        base = _radii(method, view)
        if method.sat and clip:
            c_low, c_high = method.sat.contraction(view)
            values = clipped_surrogate(r, A, *radii(base, c_low, c_high))
        else:
            values = clipped_surrogate(r, A, *base)
        clipped = is_cut(values, r, A)
        metrics = batch.active_means(cut_counts(clipped, A))
        if method.radius_policy and clip:
            means = zip(("radius/low", "radius/high"), base, strict=True)
            metrics |= batch.active_means({name: (radius * batch.mask).sum() for name, radius in means})
        if method.sat and clip:
            newly = clipped & _inside(r, base)
            newly = newly if factor is None else newly & (factor > 0)
            metrics |= sat_metrics(base, view, batch, c_low, c_high, newly)
            if quantile is None:
                metrics["sat/scope_too_small"] = scope_is_too_small(method.sat, method.ratio, batch, group)
        if clip and clip.dual is not None:
            values, bounded = dual_clip(clip.dual, values, A)
            metrics |= batch.active_means({"clip/dual": bounded.sum()})
    if factor is not None:
        values = values * factor
    return Surrogate(values, clipped, metrics | factor_metrics)


def supply_proximal(method: Method, batch: TokenBatch) -> TokenBatch:
    """Return the batch with the denominator that the method makes up from it (A-3PO), where it does.

    Raises:
        ValueError: the batch lacks what that reads.
    """
    made_up = method.proximal_policy
    if made_up is None:
        return batch
    with torch.no_grad():
        columns = (batch.log_probs, batch.rollout_log_probs, batch.needed("lags"))
        return replace(batch, proximal_log_probs=made_up.log_probs(*(column.detach() for column in columns)))


def threshold_scores(
    method: Method,
    batch: TokenBatch,
    *,
    group: torch.distributed.ProcessGroup | None = None,
    d: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the (n,) detached scores of the tokens by which the method's judge takes its threshold: SAT's staleness
    |d| (Eq. satr-d), of the token or of its response; M2PO's d^2 of outward tokens.

    For scope `step`: a pass without gradient collects them from every micro-batch, and
    `method.judge.threshold_of(scores, group=data-parallel ranks)` of them all is `quantile` of policy_surrogate.

    Args:
        method: one with a judge.
        batch, group, d: as in policy_surrogate.
    """
    assert method.judge, "it judges by a threshold"
    with torch.no_grad():
        batch = supply_proximal(method, batch.promoted())
        d = log_ratio(method.ratio, method.denominator, batch, group) if d is None else batch.active_or_zero(d)
        return method.judge.scores(_view(method, batch, d, group))


def interval_radii(method: Method, batch: TokenBatch, *, d: torch.Tensor | None = None) -> Radii:
    """Return the radii of the clip interval that SAT contracts: those of the clip, as numbers, or as (N,) tensors where
    a radius policy scales them.

    Args:
        method, batch, d: as in policy_surrogate.
    """
    with torch.no_grad():
        batch = supply_proximal(method, batch.promoted())
        d = log_ratio(method.ratio, method.denominator, batch) if d is None else batch.active_or_zero(d)
        return _radii(method, _view(method, batch, d, None))


def _view(
    method: Method, batch: TokenBatch, d: torch.Tensor, group: torch.distributed.ProcessGroup | None
) -> BatchView:
    advantages = batch.active_or_zero(batch.advantages.detach())
    return BatchView(batch, method.denominator, d, advantages, group, method.ratio)


def _policy_terms(batch: TokenBatch, d: torch.Tensor) -> PolicyTerms:
    """log pi has its gradient through d, whose slope in it is 1: so that whoever gave d gets all of it."""
    bounded = d.clamp(-MAX_LOG, MAX_LOG)
    log_pi = batch.active_or_zero(batch.log_probs.detach()).clamp(min=-MAX_LOG) + (bounded - bounded.detach())
    head = batch.policy_head
    return PolicyTerms(bounded, log_pi, None if head is None else batch.active_or_zero(head))


def _radii(method: Method, view: BatchView) -> Radii:
    """Return PPO's radii (Eq. ppo-objective), or those of the method's radius policy."""
    low, high = base_radii(method.trust_region)
    if method.radius_policy is None:
        return low, high
    with torch.no_grad():
        radii_set = method.radius_policy.radii(low, high, view)
        view.check_unwritten(method.radius_policy.name)
        return radii_set


def _inside(r: torch.Tensor, base: Radii) -> torch.Tensor:
    """Return the (N,) bool: the ratios in the interval of the base, to whose tokens it leaves their gradient."""
    return (r >= 1 - base[0]) & (r <= 1 + base[1])


def _threshold(method: Method, view: BatchView, known: torch.Tensor | float | None) -> torch.Tensor | None:
    """Return the 0-dim threshold of the method's judge; None where it has none."""
    if method.judge is None:
        return None
    if known is not None:
        return torch.as_tensor(known, dtype=view.d.dtype, device=view.d.device)
    with torch.no_grad():
        return method.judge.threshold_of(method.judge.scores(view), view.group)


def _own_metrics(instead: Replacement, batch: TokenBatch, view: BatchView) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        sums = instead.sums(view)
        view.check_unwritten(instead.name)
        return batch.active_means(sums) if sums else {}


def _gates_and_weights(
    method: Method, batch: TokenBatch, view: BatchView
) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
    """Return the (N,) product of the gates and the weights, and their metrics; None where the method has neither."""
    factor: torch.Tensor | None = None
    metrics: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for gate in method.gates:
            kept = batch.active_or_zero(gate.factor(view))
            view.check_unwritten(gate.name)
            masked = batch.mask & (kept == 0)
            metrics |= batch.active_means({f"{gate.prefix()}/masked": masked.sum()}) | gate.measured(view)
            factor = kept if factor is None else factor * kept
        for weight in method.weights:
            weights = batch.active_or_zero(weight.factor(view))
            view.check_unwritten(weight.name)
            metrics |= batch.active_means(weight.sums(weights))
            factor = weights if factor is None else factor * weights
    return factor, metrics
