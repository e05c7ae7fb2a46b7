"""SAT: the staleness-adaptive trust region, in the order in which the paper builds it.

d = log r, detached, is the staleness score (Eq. satr-d). Its quantile q (Eq. quantile), exact across ranks, is
`quantile.tail_quantile`; kernel, gate and radii stand below; the loss (Eq. satrloss) is `ppo.clipped_surrogate` on
those radii. `surrogate.policy_surrogate` calls them in this order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Gt, Le

from ...batch import TokenBatch
from ...batch_view import BatchView
from ...metric import Bound, Line, Metric, Panel, Rule, Shown
from ...quantile import quantile_rank, tail_quantile
from ...ratio import Ratio, response_lengths
from ...stabilizer import Judge, PositiveFloat, Row, Scope, Style, TrustRegion
from .ppo import Radii

SHARES = Panel("share of the tokens", "trust_region", y_label="%")


@dataclass(frozen=True)
class SAT(TrustRegion, Judge):
    """The staleness-adaptive trust region (Eqs. quantile, kernel, gate, adaptive-eps)."""

    alpha: Annotated[float, Gt(0), Le(1)] = 0.9
    """Quantile of |d| that marks where the tail starts."""
    exponent: PositiveFloat = 2.0
    """Exponent p of the Hill kernel 1 / (1 + (|d| / q)^p)."""
    scope: Scope | None = None
    """Tokens over which the quantile is taken: one micro-batch (the paper) or the whole optimizer step on all ranks.
    Unset: the step where the ratio is the sequence's, since a micro-batch of long responses has too few of them; else
    the micro-batch."""
    score: Literal["log_ratio", "tv"] = "log_ratio"
    """The measure of staleness. log_ratio: |d| (the paper). tv, which is ours and not the paper's: |pi - denominator|
    on the sampled token, under the sequence ratio its mean over the response."""

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
        Metric(
            "sat/q",
            "nats",
            "The quantile that opens the gate; under score tv it is of a probability.",
            table=Shown("q, nats", ".4f"),
        ),
        Metric("sat/q_min", "nats", "The smallest quantile of the step's micro-batches.", "min", runtime="slime"),
        Metric("sat/q_max", "nats", "The largest quantile of the step's micro-batches.", "max", runtime="slime"),
        Metric(
            "sat/{eps_high_mean,eps_low_mean}",
            "radius",
            "Mean effective radii.",
            panel=Panel("effective radii", "trust_region", zero=False),
            lines=(Line("upper radius, mean", "blue"), Line("lower radius, mean", "orange", "--")),
        ),
        Metric(
            "sat/c_min",
            "factor",
            "Smallest contraction factor.",
            "min",
            panel=Panel("strongest contraction of a token", "trust_region"),
            lines=(Line("smallest factor", "green"),),
        ),
        Metric(
            "sat/gate_rate",
            "share",
            "Tokens beyond the gate.",
            panel=SHARES,
            lines=(Line("gate open", "sky"),),
            table=Shown("gate open, share of tokens", ".2%"),
            live=Shown("gate", ".1%"),
            health=Rule(
                "gate",
                Bound(0.1, above=False, of="tail"),  # below, SAT is all but its base
                "SAT's gate is open for {level:.2%} of the tokens, less than a tenth of the tail's {usual:.0%}: its "
                "quantile is over too few responses",
                "Set method.sat.scope to step, or make micro-batches larger",
            ),
        ),
        Metric(
            "sat/newly_clipped",
            "share",
            "Tokens whose gradient SAT removed and the base, its gates included, would have kept; 0 throughout: SAT "
            "was a no-op.",
            panel=SHARES,
            lines=(Line("newly clipped (gradient changed by SAT)", "vermilion", "--"),),
            table=Shown("newly clipped, share of tokens", ".3%"),
            live=Shown("newly", ".2%"),
        ),
        Metric("sat/scope_too_small", "share", "Scopes in which the gate cannot open."),
    )

    def scores(self, batch: BatchView) -> torch.Tensor:
        """Return the (n,) staleness of the active tokens."""
        return self.staleness(batch)[batch.mask]

    def staleness(self, batch: BatchView) -> torch.Tensor:
        """Return the (N,) values that the quantile is taken of and the gate opens by: |d| (Eq. satr-d), or |pi -
        denominator|."""
        if self.score == "log_ratio":
            return batch.d.abs()
        pi, denominator = (log_probs.clamp(max=0.0).exp() for log_probs in (batch.log_pi, batch.log_denominator))
        distance = (pi - denominator).abs()
        return batch.sequence_mean(distance) if batch.unit == "sequence" else distance

    def threshold_of(self, scores: torch.Tensor, group: torch.distributed.ProcessGroup | None = None) -> torch.Tensor:
        """q, the alpha quantile of the scores (Eq. quantile)."""
        return tail_quantile(scores, self.alpha, group)

    def contraction(self, batch: BatchView) -> tuple[torch.Tensor, torch.Tensor]:
        """c_low, c_high, each (N,), at the threshold q of the batch (Eqs. kernel, gate)."""
        signed = torch.copysign(self.staleness(batch), batch.d)
        return contraction_factors(signed, batch.known_threshold, self.exponent)


def kernel(u: torch.Tensor, q: torch.Tensor | float, exponent: float = 2.0) -> torch.Tensor:
    """psi(u; q) = 1 / (1 + (u / q)^p), the Hill kernel of the staleness u on one side (Eq. kernel)."""
    return 1.0 / (1.0 + (u / q) ** exponent)


def gate(d: torch.Tensor, q: torch.Tensor | float) -> torch.Tensor:
    """Bool: q > 0 and |d| > q, strictly (Eq. gate)."""
    return (d.abs() > q) & (torch.as_tensor(q) > 0)


def contraction_factors(
    log_ratio: torch.Tensor, q: torch.Tensor | float, exponent: float = 2.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the contraction of the lower and the upper radius, gate included (Eqs. kernel, gate).

    c = 1 / (1 + (|d| / q)^exponent) where q > 0 and |d| > q, on the side of sign(d); exactly 1 elsewhere.

    Args:
        log_ratio: (N,) d, detached.
        q: the tail quantile, 0-dim.

    Returns:
        c_low, c_high, each (N,).
    """
    open_, ones = gate(log_ratio, q), torch.ones_like(log_ratio)
    return (
        torch.where(open_ & (log_ratio < 0), kernel(-log_ratio, q, exponent), ones),
        torch.where(open_ & (log_ratio > 0), kernel(log_ratio, q, exponent), ones),
    )


def radii(base: Radii, c_low: torch.Tensor, c_high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the radii below and above 1, each (N,): eps_low c_low and eps_high c_high (Eq. adaptive-eps)."""
    return base[0] * c_low, base[1] * c_high


def sat_metrics(
    base: Radii, view: BatchView, batch: TokenBatch, c_low: torch.Tensor, c_high: torch.Tensor, newly: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return the 0-dim metrics sat/* of a micro-batch (Table monitor).

    Args:
        base: the radii that SAT contracts.
        newly: (N,) bool: tokens whose gradient SAT removed and its base would have kept.
    """
    c, q = torch.minimum(c_low, c_high), view.known_threshold
    means = batch.active_means(
        {
            "sat/gate_rate": (c < 1).sum(),
            "sat/newly_clipped": newly.sum(),
            "sat/eps_low_mean": (base[0] * c_low * batch.mask).sum(),
            "sat/eps_high_mean": (base[1] * c_high * batch.mask).sum(),
        }
    )
    return {"sat/q": q, "sat/c_min": c.amin() if len(c) else torch.ones_like(q)} | means


def scope_is_too_small(
    sat: SAT, ratio: Ratio, batch: TokenBatch, group: torch.distributed.ProcessGroup | None = None
) -> torch.Tensor:
    """Return 1.0, 0-dim, where the quantile's scope is so small that the gate may be bound to stay shut
    (`scope_too_small`)."""
    if ratio == "token" and group is None:
        n_active, largest = batch.n_active, 1
    else:
        lengths = response_lengths(batch, group)
        n_active = int(lengths.sum())
        largest = int(lengths.amax()) if ratio == "sequence" and len(lengths) else 1
    too_small = scope_too_small(sat.alpha, n_active, largest)
    return torch.tensor(float(too_small), dtype=batch.log_probs.dtype, device=batch.log_probs.device)


def scope_too_small(alpha: float, n_active: int, largest_unit: int) -> bool:
    """Return whether the gate is bound to stay shut when the stalest unit is the largest one.

    A unit is the set of tokens that share one d: a token (largest_unit 1), or a response under the sequence ratio. At
    most n - ceil(alpha n) tokens lie strictly above q, so a unit of more tokens than that ties with q instead.
    """
    return largest_unit > n_active - quantile_rank(alpha, n_active)
