"""SAT: the staleness-adaptive trust region, in the order in which the paper builds it.

d = log r, detached, is the staleness score (Eq. satr-d). Below stand first the equations as they are, then the form
that the loss computes with, whose quantile is `quantile.tail_quantile`; tests hold the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Gt, Le

from ...batch import TokenBatch
from ...batch_view import BatchView
from ...clip import Clipped, indicator
from ...metric import Metric
from ...quantile import quantile_rank, tail_quantile
from ...ratio import Ratio, response_lengths
from ...stabilizer import Judge, PositiveFloat, Row, Scope, Style, TrustRegion
from .ppo import Clip, clip_ends


@dataclass(frozen=True)
class SAT(TrustRegion, Judge):
    """The staleness-adaptive trust region (Eqs. quantile, kernel, gate, adaptive-eps)."""

    alpha: Annotated[float, Gt(0), Le(1)] = 0.9
    """Quantile of |d| that marks where the tail begins."""
    exponent: PositiveFloat = 2.0
    """Exponent p of the Hill kernel 1 / (1 + (|d| / q)^p)."""
    scope: Scope = "microbatch"
    """Tokens over which the quantile is taken: one micro-batch (the paper) or the whole optimizer step on all ranks."""
    score: Literal["log_ratio", "tv"] = "log_ratio"
    """What staleness is. log_ratio: |d| (the paper). tv, which is ours and not the paper's: |pi - denominator| on the
    sampled token, under the sequence ratio its mean over the response."""

    name = "sat"
    place = "prefix"
    help = "SAT on top of the base. `sat: true` turns it on with the paper's settings."
    switch_help = "Contract the clip interval on the stale tail of each batch."
    no_op_at_ratio_one = "SAT's gate can never open (all |d| are 0)"
    row = Row(
        "SAT",
        unit="token or sequence",
        discriminator="|d| and |r − 1|",
        constraint="adaptive clip interval",
        weight="{0, 1}",
        direction="asymmetric, adaptive",
        formula=(
            "S = min(r A, clip(r, 1 − ε_low c₋, 1 + ε_high c₊) A),  d = log r,  q the α-quantile of |d|,  "
            "c± = 1 / (1 + (|d|/q)^p) on the side of d where |d| > q, else 1"
        ),
        source="Eqs. quantile, kernel, gate, adaptive-eps, satr-clip, satrloss",
        needs="rollout log-probs; with TIS also the trainer's log-probs under the generating weights",
        excludes=(
            "bases without a clip interval of PPO's kind (trpo, m2po, smooth surrogates, score forms, gmpo, cpgd); "
            "denominator trainer at one step per rollout (d is 0)"
        ),
    )
    style = Style("blue", "--")
    metrics = (
        Metric("sat/q", "nats", "The quantile that opens the gate; under score tv it is of a probability."),
        Metric("sat/q_min", "nats", "The least quantile of the step's micro-batches.", "min", runtime="slime"),
        Metric("sat/q_max", "nats", "The largest quantile of the step's micro-batches.", "max", runtime="slime"),
        Metric("sat/gate_rate", "share", "Tokens beyond the gate."),
        Metric(
            "sat/newly_clipped",
            "share",
            "Tokens whose gradient SAT removed and the base, its gates included, would have kept; 0 throughout: SAT "
            "was a no-op.",
        ),
        Metric("sat/{eps_low_mean,eps_high_mean}", "radius", "Mean effective radii."),
        Metric("sat/c_min", "factor", "Smallest contraction factor.", "min"),
        Metric("sat/scope_too_small", "share", "Scopes in which the gate cannot open."),
    )

    def scores(self, batch: BatchView) -> tuple[torch.Tensor, int]:
        """(N,) staleness of the tokens, 0 on inactive ones, which are padding."""
        stale = batch.once(self.staleness)
        return stale, len(stale) - batch.n_active

    def staleness(self, batch: BatchView) -> torch.Tensor:
        """(N,) what the quantile is taken of and the gate opens by: |d| (Eq. satr-d), or |pi - denominator|."""
        if self.score == "log_ratio":
            return batch.d.abs()
        pi, denominator = (log_probs.clamp(max=0.0).exp() for log_probs in (batch.log_pi, batch.log_denominator))
        distance = (pi - denominator).abs()
        return batch.sequence_mean(distance) if batch.unit == "sequence" else distance

    def threshold_of(
        self, scores: torch.Tensor, group: torch.distributed.ProcessGroup | None = None, padding: int = 0
    ) -> torch.Tensor:
        """q, the alpha quantile of the scores (Eq. quantile)."""
        return tail_quantile(scores, self.alpha, group, padding=padding)


# ------------------------------------------------------------------------------------- the equations, as they stand


def quantile(d: torch.Tensor, alpha: float) -> torch.Tensor:
    """0-dim q, the smallest x at which at least a fraction alpha of the (n,) |d| is at or below x (Eq. quantile); n is
    at least 1."""
    return d.abs().sort().values[quantile_rank(alpha, len(d)) - 1]


def kernel(u: torch.Tensor, q: torch.Tensor | float, exponent: float = 2.0) -> torch.Tensor:
    """psi(u; q) = 1 / (1 + (u / q)^p), the Hill kernel of the staleness u on one side (Eq. kernel)."""
    return 1.0 / (1.0 + (u / q) ** exponent)


def gate(d: torch.Tensor, q: torch.Tensor | float) -> torch.Tensor:
    """Bool: q > 0 and |d| > q, strictly (Eq. gate)."""
    return (d.abs() > q) & (torch.as_tensor(q) > 0)


def contraction_factors(
    log_ratio: torch.Tensor, q: torch.Tensor | float, exponent: float = 2.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Contraction of the lower and the upper radius, gate included (Eqs. kernel, gate).

    c = 1 / (1 + (|d| / q)^exponent) where q > 0 and |d| > q, on the side of sign(d); exactly 1 elsewhere.

    Args:
        log_ratio: (N,) d, detached.
        q: the tail quantile, 0-dim.

    Returns:
        c_low, c_high, each (N,).
    """
    open_, one = gate(log_ratio, q), torch.ones_like(log_ratio)
    return (
        torch.where(open_ & (log_ratio < 0), kernel(-log_ratio, q, exponent), one),
        torch.where(open_ & (log_ratio > 0), kernel(log_ratio, q, exponent), one),
    )


def radii(clip: Clip, c_low: torch.Tensor, c_high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Radii below and above 1, each (N,): eps_low c_low and eps_high c_high (Eq. adaptive-eps)."""
    return clip.eps_low * c_low, clip.eps_high * c_high


def sat_surrogate(
    sat: SAT,
    clip: Clip,
    d: torch.Tensor,
    advantages: torch.Tensor,
    q: torch.Tensor | float,
    stale: torch.Tensor | None = None,
) -> torch.Tensor:
    """(N,) S = min(r A, clip(r, 1 - eps_low c_low, 1 + eps_high c_high) A), r = e^d (Eqs. satr-clip, satrloss). stale:
    (N,) what stands in the place of |d| under another score than the paper's."""
    signed = d.detach() if stale is None else torch.copysign(stale, d.detach())
    below, above = radii(clip, *contraction_factors(signed, q, sat.exponent))
    ratio = d.exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - below, 1 + above) * advantages)


# ------------------------------------------------------------------------------------ the form that the loss uses


@dataclass(frozen=True, eq=False)
class Contraction:
    """SAT's interval of N tokens."""

    q: torch.Tensor
    """0-dim."""
    c: torch.Tensor
    """(N,) the factor of |d|."""
    shrink: torch.Tensor
    """(N,) 1 - c."""
    low: torch.Tensor
    high: torch.Tensor
    """(N,) ends of the interval."""


def contract(sat: SAT, clip: Clip, stale: torch.Tensor, q: torch.Tensor) -> Contraction:
    """SAT's interval for the (N,) staleness at the 0-dim quantile q (Eqs. kernel, gate, adaptive-eps).

    The ratio lies on the side of 1 that sign(d) names, so the end on the other side cannot bind: the factor of the
    staleness stands at both ends, and only the mean radii have to tell the sides apart.
    """
    c = contraction(stale, q, sat.exponent)
    shrink = 1.0 - c
    return Contraction(q, c, shrink, *contracted_ends(clip, shrink))


def contraction(mismatch: torch.Tensor, q: torch.Tensor | float, exponent: float = 2.0) -> torch.Tensor:
    """(N,) gated kernel of one side (Eqs. kernel, gate): 1 / (1 + (u / q)^exponent) where u > q > 0, else 1."""
    bound = float(q)
    if bound <= 0:
        return torch.ones_like(mismatch)
    # threshold is strict and keeps the value: the gate and the positive part in one.
    tail = torch.nn.functional.threshold(mismatch, bound, 0.0).div_(bound)
    return tail.pow_(exponent).add_(1.0).reciprocal_()


def contracted_ends(clip: Clip, shrink: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(N,) ends of SAT's interval (Eq. adaptive-eps) from shrink = 1 - c.

    Taken from PPO's ends by subtraction, so that c = 1 gives those to the bit, and never beyond 1.
    """
    low, high = clip_ends(clip)
    return (
        shrink.mul(clip.eps_low).add_(low).clamp_(max=1.0),
        shrink.mul(-clip.eps_high).add_(high).clamp_(min=1.0),
    )


def sat_metrics(
    interval: Contraction, clip: Clip, batch: TokenBatch, view: BatchView, held: Clipped, factor: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """0-dim sat/* and clip/* of a micro-batch (Table monitor).

    Args:
        held: the clipped surrogate on that interval.
        factor: (N,) product of gates and weights: a token that a gate drops had no gradient to lose. None: 1.
    """
    with torch.no_grad():
        in_base = indicator(torch.eq, held.ratio.clamp(*clip_ends(clip)), held.ratio)
        cut = held.cut if factor is None else held.cut * factor.sign()
        either, difference = interval.shrink.sum(), torch.dot(interval.shrink, view.d.sign())
        means = batch.active_means(
            {
                "sat/gate_rate": interval.shrink.sign().sum(),
                "sat/newly_clipped": torch.dot(cut, in_base),
                "sat/eps_low_mean": (either - difference) * (-clip.eps_low / 2),
                "sat/eps_high_mean": (either + difference) * (-clip.eps_high / 2),
            }
            | held.sums(view.advantages)
        )
        means["sat/eps_low_mean"] += clip.eps_low
        means["sat/eps_high_mean"] += clip.eps_high
        c, q = interval.c, interval.q
        return {"sat/q": q, "sat/c_min": c.amin() if len(c) else torch.ones_like(q)} | means


def scope_is_too_small(
    sat: SAT, ratio: Ratio, batch: TokenBatch, group: torch.distributed.ProcessGroup | None = None
) -> torch.Tensor:
    """0-dim: 1.0 where the quantile's scope is so small that the gate may be bound to stay shut (`scope_too_small`)."""
    if ratio == "token" and group is None:
        n_active, largest = batch.n_active, 1
    else:
        lengths = response_lengths(batch, group)
        n_active = int(lengths.sum())
        largest = int(lengths.amax()) if ratio == "sequence" and len(lengths) else 1
    too_small = scope_too_small(sat.alpha, n_active, largest)
    return torch.tensor(float(too_small), dtype=batch.log_probs.dtype, device=batch.log_probs.device)


def scope_too_small(alpha: float, n_active: int, largest_unit: int) -> bool:
    """Whether the gate is bound to stay shut when the stalest unit is the largest one.

    A unit is the set of tokens that share one d: a token (largest_unit 1), or a response under the sequence ratio. At
    most n - ceil(alpha n) tokens lie strictly above q, so a unit of more tokens than that ties with q instead.
    """
    return largest_unit > n_active - quantile_rank(alpha, n_active)
