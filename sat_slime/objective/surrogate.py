"""policy_surrogate: what each token adds to the objective, under any method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from .batch import TokenBatch
from .clip import Clipped, bounded_ratio, clipped_surrogate, indicator
from .gates import GATES
from .method import SAT, Method
from .penalties import PENALTIES
from .ratio import engine_log_ratio, log_ratio, response_lengths
from .trust_region import clip_ends, contracted_ends, contraction, scope_too_small, tail_quantile
from .weights import tis_weight


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
    """The sampled surrogate S of each token (Eqs. ppo-objective, satrloss, app-spo, app-drpo), times gates and TIS.

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
    if method.penalty is not None and method.trust_region is not None:
        raise ValueError(f"{method.name}: a penalty replaces the clip; set trust_region to None")
    batch = batch.promoted()
    d = log_ratio(method, batch, group) if d is None else batch.active_or_zero(d)
    advantages = batch.active_or_zero(batch.advantages.detach())
    factor, factor_metrics = _gates_and_weight(method, batch, group)

    if method.penalty is not None:
        mu = batch.active_or_zero(batch.rollout_log_probs.detach()).exp()
        values = PENALTIES[type(method.penalty)](method.penalty, bounded_ratio(d), advantages, mu)
        clipped = torch.zeros_like(batch.mask)
        metrics: dict[str, Tensor] = {}
    elif isinstance(method.trust_region, SAT):
        values, clipped, metrics = _sat(method, method.trust_region, batch, d, advantages, factor, group, quantile)
    else:
        held = clipped_surrogate(d, advantages, *clip_ends(method.trust_region))
        values, clipped, metrics = held.values, held.cut.bool(), _active_means(batch, _clip_sums(held, advantages))

    if method.trust_region is not None and method.trust_region.dual is not None:
        values, dual_metrics = _dual_clip(method.trust_region.dual, batch, values, advantages)
        metrics |= dual_metrics
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
        return log_ratio(method, batch.promoted(), group)


def _gates_and_weight(
    method: Method, batch: TokenBatch, group: dist.ProcessGroup | None
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """(N,) product of the gates and the TIS weight, detached, and their metrics; None where the method has neither."""
    factor: Tensor | None = None
    metrics: dict[str, Tensor] = {}
    for gate in method.gates:
        kept = batch.active_or_zero(GATES[type(gate)](gate, method, batch, group))
        masked = batch.mask & (kept == 0)
        metrics |= _active_means(batch, {f"{type(gate).__name__.lower()}/masked": masked.sum()})
        factor = kept if factor is None else factor * kept
    if method.tis is not None:
        weight = batch.active_or_zero(tis_weight(method.tis, engine_log_ratio(method, batch)))
        capped = indicator(torch.eq, weight, method.tis.cap)
        metrics |= _active_means(batch, {"tis/weight": weight.sum(), "tis/capped": capped.sum()})
        factor = weight if factor is None else factor * weight
    return factor, metrics


def _sat(
    method: Method,
    region: SAT,
    batch: TokenBatch,
    d: Tensor,
    advantages: Tensor,
    factor: Tensor | None,
    group: dist.ProcessGroup | None,
    quantile: Tensor | float | None,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    score = d.detach()
    stale = score.abs()
    metrics: dict[str, Tensor] = {}
    if quantile is None:
        q = tail_quantile(stale, region.alpha, group, padding=len(stale) - batch.n_active)
        metrics["sat/scope_too_small"] = _scope_metric(method, region, batch, group)
    else:
        q = torch.as_tensor(quantile, dtype=score.dtype, device=score.device)
    # The ratio lies on the side of 1 that sign(d) names, so the end on the other side cannot bind: the factor of |d|
    # may stand at both ends, and only the mean radii have to tell the sides apart.
    c = contraction(stale, q, region.exponent)
    shrink = 1.0 - c
    held = clipped_surrogate(d, advantages, *contracted_ends(region, shrink))

    with torch.no_grad():
        low, high = clip_ends(region)
        in_base = indicator(torch.eq, held.ratio.clamp(low, high), held.ratio)
        # A token that a gate drops had no gradient to lose.
        cut = held.cut if factor is None else held.cut * factor.sign()
        either, difference = shrink.sum(), torch.dot(shrink, score.sign())
        means = _active_means(
            batch,
            {
                "sat/gate_rate": shrink.sign().sum(),
                "sat/newly_clipped": torch.dot(cut, in_base),
                "sat/eps_low_mean": (either - difference) * (-region.eps_low / 2),
                "sat/eps_high_mean": (either + difference) * (-region.eps_high / 2),
            }
            | _clip_sums(held, advantages),
        )
        means["sat/eps_low_mean"] += region.eps_low
        means["sat/eps_high_mean"] += region.eps_high
        c_min = c.amin() if len(c) else torch.ones_like(q)
    return held.values, held.cut.bool(), metrics | {"sat/q": q, "sat/c_min": c_min} | means


def _dual_clip(dual: float, batch: TokenBatch, values: Tensor, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """max(S, dual A) where A < 0: bounds what a token with a huge ratio and a negative advantage can weigh."""
    bound = dual * advantages
    held = torch.where(advantages < 0, torch.maximum(values, bound), values)
    return held, _active_means(batch, {"clip/dual": ((advantages < 0) & (values.detach() < bound)).sum()})


def _scope_metric(method: Method, region: SAT, batch: TokenBatch, group: dist.ProcessGroup | None) -> Tensor:
    """1.0 where the quantile's scope is so small that the gate may be bound to stay shut (see scope_too_small)."""
    if method.ratio == "token" and group is None:
        n_active, largest = batch.n_active, 1
    else:
        lengths = response_lengths(batch, group)
        n_active = int(lengths.sum())
        largest = int(lengths.amax()) if method.ratio == "sequence" and len(lengths) else 1
    too_small = scope_too_small(region.alpha, n_active, largest)
    return torch.tensor(float(too_small), dtype=batch.log_probs.dtype, device=batch.log_probs.device)


def _clip_sums(held: Clipped, advantages: Tensor) -> dict[str, Tensor]:
    both, upper = held.cut.sum(), torch.dot(held.cut, indicator(torch.gt, advantages, 0.0))
    return {"clip/fraction": both, "clip/upper": upper, "clip/lower": both - upper}


def _active_means(batch: TokenBatch, sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """0-dim means over active tokens from the sums over them; 0 where no token is active."""
    means = torch.stack(list(sums.values())) / max(batch.n_active, 1)
    return dict(zip(sums, means.unbind(), strict=True))
