"""policy_surrogate: what each token adds to the objective. Read this first; it is the whole loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .method import Method
from .sat import RadiusAt, contraction_factors
from .stabilizer import Gate, Weight
from .tokens import TokenBatch, Tokens


@dataclass(frozen=True, eq=False)
class Result:
    """The surrogate of a micro-batch."""

    values: Tensor
    """(N,) S, to be maximized; with gradient; 0 on inactive tokens. NaN throughout, its gradient too, where any number
    of an active token is not finite; broken_tokens says which."""
    clipped: Tensor
    """(N,) bool: tokens whose gradient the clip interval takes away."""
    metrics: dict[str, Tensor | RadiusAt]
    """Name to 0-dim tensor, detached, or to what is a number once q is read; over this rank's active tokens."""
    n: int
    """Active tokens of this rank."""


def policy_surrogate(
    method: Method,
    batch: TokenBatch,
    *,
    group: dist.ProcessGroup | None = None,
    threshold: Tensor | float | None = None,
    d: Tensor | None = None,
) -> Result:
    """The sampled surrogate S of each token (Eqs. ppo-objective, satrloss, app-*), times gates and weights.

    Args:
        method: the objective.
        batch: one micro-batch of N tokens.
        group: context-parallel ranks that hold parts of the same responses, in the same order. The threshold is over
            all of them, and so are the means over responses; gradients are those of the sum of all ranks' losses.
        threshold: of the method's judge (SAT's q, M2PO's), where it is taken over a whole step. Unset: over these
            tokens and `group`.
        d: (N,) log-ratio of the method, with its gradient, where the caller has taken it in an order of sums of its
            own.

    Raises:
        ValueError: the batch lacks what the method reads, or the method has a clip and no interval for it.
    """
    method.check_interval()
    t = Tokens(method, batch, group, d)
    if method.judge is not None:
        with torch.no_grad():
            own = method.judge.threshold_of(method.judge.scores(t), group) if threshold is None else threshold
            t.threshold = torch.as_tensor(own, dtype=t.dtype, device=t.A.device)
    factor = _gates_and_weights(method, t)
    r, A = t.ratio, t.A

    if method.instead is not None:
        S, clipped = method.instead.values(t), torch.zeros_like(A, dtype=torch.bool)
    else:
        low, high = eps_low, eps_high = radii(method, t)
        if method.sat:
            c_low, c_high = contraction_factors(t.d.detach(), t.threshold, method.sat.exponent)
            eps_low, eps_high = low * c_low, high * c_high
        S = torch.minimum(rA := r * A, r.clamp(1 - eps_low, 1 + eps_high) * A)
        clipped = S.detach() < rA.detach()
        t.measured |= {"clip/fraction": clipped, "clip/upper": clipped & (A > 0), "clip/lower": clipped & (A < 0)}
        if method.sat:
            base_keeps = (r >= 1 - low) & (r <= 1 + high)
            base_keeps = base_keeps if factor is None else base_keeps & (factor > 0)
            t.measured |= {"sat/newly_clipped": clipped & base_keeps}
            own_scope = threshold is None and method.scope != "step"
            method.sat.measure(t, c_low, c_high, own_scope)
        if method.clip and method.clip.dual:
            bound = method.clip.dual * A
            t.measured["clip/dual"] = held = (A < 0) & (S.detach() < bound)
            S = torch.where(held, bound, S)
    S = (S if factor is None else S * factor) + t.poison
    metrics: dict[str, Tensor | RadiusAt] = {**_means(t)}
    if method.sat and method.clip and not method.radius_policy:  # a policy gives each token its own
        q, exponent = t.threshold, method.sat.exponent
        metrics["sat/radius_low"] = RadiusAt(q, method.clip.eps_low, exponent, above=False)
        metrics["sat/radius_high"] = RadiusAt(q, method.clip.eps_high, exponent, above=True)
    return Result(t.back(S), t.back(clipped), metrics, t.n)


@torch.no_grad()
def radii(method: Method, t: Tokens) -> tuple[Any, Any]:
    """The radii of the clip interval before SAT contracts them, numbers or (n,) tensors; without a clip those of an
    interval that cuts nothing."""
    low, high = (method.clip.eps_low, method.clip.eps_high) if method.clip else (1.0, float("inf"))
    if method.radius_policy is None:
        return low, high
    set_low, set_high = method.radius_policy.radii(low, high, t)
    t.measured |= {"radius/low": set_low, "radius/high": set_high}
    return set_low, set_high


@torch.no_grad()
def _gates_and_weights(method: Method, t: Tokens) -> Tensor | None:
    """The (n,) product of the method's gates and weights; None where it has neither."""
    product = None
    parts: tuple[Gate | Weight, ...] = (*method.gates, *method.weights)
    for part in parts:
        factor = part.factor(t).to(t.dtype)
        what, measured = ("masked", factor == 0) if isinstance(part, Gate) else ("weight", factor)
        t.measured[f"{part.prefix()}/{what}"] = measured
        product = factor if product is None else product * factor
    return product


@torch.no_grad()
def _means(t: Tokens) -> dict[str, Tensor]:
    """What was measured: the means of columns, and 0-dim numbers as they are. 0 of no token."""
    means: dict[str, Tensor] = {}
    for truth in (True, False):
        columns = {name: c for name, c in t.measured.items() if c.dim() and (c.dtype == torch.bool) == truth}
        if columns:
            sums = torch.stack([*columns.values()]).sum(1, dtype=t.dtype) / max(t.n, 1)
            means |= dict(zip(columns, sums.unbind(), strict=True))
    return {name: means.get(name, number).detach() for name, number in t.measured.items()}


@torch.no_grad()
def threshold_scores(
    method: Method, batch: TokenBatch, *, group: dist.ProcessGroup | None = None, d: Tensor | None = None
) -> Tensor:
    """The scores of the active tokens by which the method's judge takes its threshold: SAT's staleness (Eq. satr-d),
    M2PO's d^2.

    For scope `step`: a pass without gradient collects them from every micro-batch, and
    `method.judge.threshold_of(scores, group=data-parallel ranks)` of them all is `threshold` of policy_surrogate.

    Args:
        method: one with a judge.
        batch, group, d: as in policy_surrogate.
    """
    assert method.judge is not None, "the method has a judge"
    return method.judge.scores(Tokens(method, batch, group, d, without="entropies"))
