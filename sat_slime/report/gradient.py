"""What a method does to single tokens: their gradient weight and fate, sums of both over a dump, and SAT's gate by the
scope of its quantile.

The gradient weight of a token is g = d(sum of S) / d log pi of the token, what a method puts in the place of A. The
policy gradient is the sum of w g grad log pi over tokens, w the weights of the reduction. g comes from policy_surrogate
by autograd through the method's own log-ratio d, which is one number per token and cheap. Between d and log pi lies the
identity, or the mean over the response (Eq. gspo-ratio), whose transpose is itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from sat_slime.objective import (
    Judge,
    Method,
    MetricAccumulator,
    TokenBatch,
    Tokens,
    log_ratio,
    named_method,
    policy_surrogate,
    threshold_scores,
)
from sat_slime.objective.sat import RadiusAt, kernel
from sat_slime.objective.surrogate import radii
from sat_slime.objective.terms import bounded_exp
from sat_slime.objective.tokens import response_mean_weights
from sat_slime.report.dumps import StepBatch

UNCLIPPED = Method(named_method("grpo").stabilizers, clip=None, called="unclipped")
"""The importance-sampled gradient r A of every token, which the others are compared with."""
KEPT, REWEIGHTED, MASKED, CLIPPED = range(4)
FATES = ("kept", "re-weighted", "masked", "clipped")
"""The fates of a token. Kept: its own term of the surrogate has the slope r A of the method's own ratio.
Re-weighted: it has another slope, as that of a score form whose weight is not r, or of a penalty. Masked: a gate drops
the token, or a weight of 0. Clipped: the clip interval holds it; this comes before masked."""
GROUPS = ("A > 0, above", "A > 0, below", "A < 0, above", "A < 0, below")
"""Tokens by the sign of the advantage and the side on which the ratio lies that the method judges by."""
SCOPES = ("microbatch", "step")

Metrics = tuple[int, dict[str, Tensor | RadiusAt]]
"""(active tokens, the metrics of policy_surrogate over them)."""


class StepView:
    """A step as all methods see it: each log-ratio and each quantile is computed once."""

    def __init__(self, batch: StepBatch):
        self.batch = batch
        self._ratios: dict[tuple[str, str], Tensor] = {}
        self._thresholds: dict[tuple[str, str, Judge], Tensor] = {}

    def prepare(self, methods: Sequence[Method]) -> None:
        """Compute all that `methods` read, before several threads read it."""
        for method in methods:
            self.log_ratio(method)
            if method.judge:
                self.step_threshold(method)

    def log_ratio(self, method: Method) -> Tensor:
        """Return (N,) d of the method over the whole step; 0 on inactive tokens."""
        key = method.ratio, method.denominator
        if key not in self._ratios:
            self._ratios[key] = log_ratio(method, self.tokens(method))
        return self._ratios[key]

    def step_threshold(self, method: Method) -> Tensor:
        """Return the threshold of the method's judge under scope `step`: SAT's q, M2PO's."""
        assert method.judge, "it judges by a threshold"
        key = method.ratio, method.denominator, method.judge
        if key not in self._thresholds:
            scores = threshold_scores(method, self.tokens(method), d=self.log_ratio(method))
            self._thresholds[key] = method.judge.threshold_of(scores)
        return self._thresholds[key]

    def tokens(self, method: Method, tokens: slice = slice(None), lengths: Tensor | None = None) -> TokenBatch:
        """Return tokens of the step as the objective takes them, with the denominator that the method reads."""
        step = self.batch
        proximal = {"checkpoint": step.checkpoint_log_probs, "trainer": step.proximal_log_probs}.get(method.denominator)
        return TokenBatch(
            log_probs=step.log_probs[tokens],
            rollout_log_probs=step.rollout_log_probs[tokens],
            advantages=step.advantages[tokens],
            mask=step.mask[tokens],
            lengths=step.lengths if lengths is None else lengths,
            proximal_log_probs=None if proximal is None else proximal[tokens],
            **{need: getattr(step, need)[tokens] for need in method.needs},
        )


@dataclass(frozen=True)
class Span:
    """Consecutive micro-batches of a step that are computed together."""

    step: StepView
    responses: slice
    tokens: slice
    microbatches: list[tuple[slice, Tensor]]
    """Of each micro-batch: the place of its tokens, counted from the span's first, and the (responses,) lengths."""

    @property
    def lengths(self) -> Tensor:
        """(responses,) tokens of each response."""
        return self.step.batch.lengths[self.responses]

    def log_ratio(self, method: Method) -> Tensor:
        """Return (n,) d of the method."""
        return self.step.log_ratio(method)[self.tokens]

    def slopes(self, method: Method) -> Tensor:
        """Return (n,) r A of the method's own ratio."""
        return bounded_exp(self.log_ratio(method)) * self.step.batch.advantages[self.tokens]

    def whole(self, method: Method) -> TokenBatch:
        """Return all tokens of the span as the objective takes them."""
        return self.step.tokens(method, self.tokens, self.lengths)

    def parts(self, method: Method, each_microbatch: bool) -> list[tuple[slice, TokenBatch]]:
        """Return (place of its tokens, the tokens) of each micro-batch, or of the whole span as one."""
        if not each_microbatch:
            return [(slice(None), self.whole(method))]
        at = self.tokens.start
        return [
            (part, self.step.tokens(method, slice(at + part.start, at + part.stop), lengths))
            for part, lengths in self.microbatches
        ]


def spans(view: StepView, at_least: int) -> list[Span]:
    """Return the micro-batches of a step in spans; each but the last has at least so many tokens."""
    sizes = view.batch.microbatches
    assert sizes is not None
    joined: list[Span] = []
    token = response = 0
    start, parts = (0, 0), list[tuple[slice, Tensor]]()
    for index, size in enumerate(sizes):
        lengths = view.batch.lengths[response : response + size]
        n = int(lengths.sum())
        parts.append((slice(token - start[0], token - start[0] + n), lengths))
        token, response = token + n, response + size
        if token - start[0] >= at_least or index == len(sizes) - 1:
            joined.append(Span(view, slice(start[1], response), slice(start[0], token), parts))
            start, parts = (token, response), []
    return joined


def token_gradient(method: Method, span: Span) -> tuple[Tensor, Tensor, list[Metrics]]:
    """Return of the span's tokens the (N,) gradient weights g, 0 on inactive ones; their (N,) fates, int64 of FATES,
    without meaning where A is 0 or the token inactive; and the metrics of each micro-batch, or of all tokens at once
    where micro-batches make no difference. SAT takes its quantile over its own scope."""
    d = span.log_ratio(method).requires_grad_()
    of_step = method.threshold_is_of_the_step
    threshold = span.step.step_threshold(method) if of_step else None
    parts = span.parts(method, each_microbatch=method.judge is not None and not of_step)
    results = [policy_surrogate(method, tokens, threshold=threshold, d=d[part]) for part, tokens in parts]
    values = torch.cat([result.values for result in results])
    (slopes,) = torch.autograd.grad(values, d, torch.ones_like(values))
    weights = slopes
    if method.ratio == "sequence":
        t = Tokens(method, span.whole(method), d=d.detach())
        weights = t.back(t.mean(t.cut(slopes)))
    flat, none = slopes == 0, values.detach() == 0
    fates = torch.where(slopes == span.slopes(method), KEPT, REWEIGHTED)
    fates.masked_fill_(flat & none, MASKED)
    fates.masked_fill_((flat & ~none) | torch.cat([result.clipped for result in results]), CLIPPED)
    return weights, fates, [(result.n, result.metrics) for result in results]


def gate_metrics(method: Method, span: Span, scope: str) -> list[Metrics]:
    """Return the metrics of a SAT method with its quantile over `scope`, whatever its own scope is."""
    threshold = span.step.step_threshold(method) if scope == "step" else None
    d = span.log_ratio(method)
    with torch.no_grad():
        results = [
            policy_surrogate(method, tokens, threshold=threshold, d=d[part])
            for part, tokens in span.parts(method, each_microbatch=threshold is None)
        ]
    return [(result.n, result.metrics) for result in results]


# ----------------------------------------------------------------------------------------------------------------- sums


@dataclass
class Sums:
    """Sums of M methods over the same tokens; but for `tokens` and `products`, over those with an advantage. v = g / A
    is a method's weight on A grad log pi."""

    fates: np.ndarray
    """(M, groups, fates) tokens."""
    weight: np.ndarray
    """(M,) sum |v|."""
    weight_squared: np.ndarray
    weight_max: np.ndarray
    products: np.ndarray
    """(M + 1, M + 1) sums of (w g) (w h) over tokens; the last row and column are those of UNCLIPPED."""
    tokens: int = 0
    """Active tokens."""
    scopes: dict[tuple[int, str], list[Metrics]] = field(default_factory=dict)
    """Metrics of each SAT method, by its number, under each scope of its quantile; of one step."""

    @classmethod
    def none(cls, methods: int) -> Sums:
        """Return the sums over no token."""
        m = methods
        counts = np.zeros((m, len(GROUPS), len(FATES)), np.int64)
        return cls(counts, np.zeros(m), np.zeros(m), np.zeros(m), np.zeros((m + 1, m + 1)))

    def add(self, other: Sums) -> None:
        """Add the sums over further tokens, but for the metrics."""
        for name in ("fates", "weight", "weight_squared", "products", "tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.weight_max = np.maximum(self.weight_max, other.weight_max)

    @property
    def counted(self) -> np.ndarray:
        """(M,) tokens with an advantage."""
        return np.asarray(self.fates.sum(axis=(1, 2)))

    def shares(self) -> np.ndarray:
        """Return (M, 3): the clipped and the masked share of the tokens with an advantage; and the share of them that
        carries the update, (sum |v|)^2 / (n sum v^2), NaN where there is none."""
        n = self.counted
        of_fates = self.fates.sum(axis=1)[:, [CLIPPED, MASKED]] / np.maximum(n, 1)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            effective = self.weight**2 / (n * self.weight_squared)
        return np.column_stack([of_fates, effective])

    def cosines(self) -> np.ndarray:
        """Return (M + 1, M + 1) cosines between the methods' w g; NaN beside a gradient that is zero throughout."""
        norms = np.sqrt(np.diag(self.products))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.clip(self.products / np.outer(norms, norms), -1, 1)


def span_sums(methods: Sequence[Method], span: Span) -> Sums:
    """Sum up what every method does on a span."""
    step = span.step.batch
    mask, advantages = step.mask[span.tokens], step.advantages[span.tokens]
    weights = response_mean_weights(mask, span.lengths, 1)
    counted = mask & (advantages != 0)
    mismatch = (step.log_probs - step.rollout_log_probs)[span.tokens]
    inverse = torch.where(counted, 1.0 / torch.where(counted, advantages, 1.0), 0.0)
    negative = (advantages < 0).to(torch.int64)

    sums = Sums.none(len(methods))
    sums.tokens = int(mask.sum())
    rows = torch.empty(len(methods) + 1, len(mask), dtype=torch.float64)
    for index, method in enumerate(methods):
        g, fates, metrics = token_gradient(method, span)
        for scope in SCOPES if method.sat else ():
            sums.scopes[index, scope] = metrics if method.scope == scope else gate_metrics(method, span, scope)
        # Against the trainer the ratio is 1 at the first optimizer step; what is judged then is pi / mu.
        judged = mismatch if method.denominator == "trainer" else span.log_ratio(method)
        cells = (negative * 2 + (judged < 0)) * len(FATES) + fates
        counts = torch.bincount(cells[counted], minlength=len(GROUPS) * len(FATES))
        sums.fates[index] = counts.reshape(len(GROUPS), len(FATES)).numpy()
        v = (g * inverse).double()
        sums.weight[index], sums.weight_squared[index] = float(v.norm(1)), float(torch.dot(v, v))
        sums.weight_max[index] = float(v.norm(math.inf)) if len(v) else 0.0
        torch.mul(weights, g, out=rows[index])
    torch.mul(weights, torch.where(mask, span.slopes(UNCLIPPED), 0.0), out=rows[-1])
    sums.products = (rows @ rows.T).numpy()
    return sums


def reduced(rows: Sequence[Metrics]) -> dict[str, float]:
    """Reduce the metrics of micro-batches to those of their step, as a run reduces them."""
    accumulator = MetricAccumulator()
    for weight, metrics in rows:
        accumulator.add(metrics, weight)
    return accumulator.reduce()


# ------------------------------------------------------------------------------ SAT's gate by the scope of its quantile

SIZES = tuple(2**power for power in range(9))
"""Responses in the scope: 1 to 256."""
ORDERS = ("grouped", "shuffled")
"""Orders of the responses: as they were sampled, those to a prompt beside one another; or at random."""


def scope_sweep(method: Method, view: StepView, seed: int) -> np.ndarray:
    """Return (3, orders, sizes) counts of a SAT method over one step: the tokens in whole scopes, those beyond the
    gate, those that are newly clipped. A scope is a number of consecutive responses; what is left over, too few for a
    whole scope, does not count. Other gates of the method are not applied."""
    counts = np.zeros((3, len(ORDERS), len(SIZES)), np.int64)
    step, sat = view.batch, method.sat
    if sat is None or method.clip is None:
        return counts
    t = Tokens(method, view.tokens(method), d=view.log_ratio(method))
    reach, stale = outward_reach(radii(method, t), t.d, t.A).numpy(), sat.scores(t).numpy()
    n = len(step.lengths)
    owner = np.repeat(np.arange(n, dtype=np.int32), step.lengths.numpy())[step.mask.numpy()]
    ascending = np.argsort(stale, kind="stable")
    stale, reach, owner = stale[ascending], reach[ascending], owner[ascending]
    sampled = np.arange(n) if step.order is None else step.order.numpy()
    for row, order in enumerate((sampled, np.random.default_rng(seed).permutation(n))):
        place = np.empty(n, dtype=np.int32)
        place[order] = np.arange(n)
        for column, size in enumerate(SIZES):
            if (scopes := n // size) == 0:
                continue
            # a type of 16 bits makes numpy sort by radix
            scope = (place // size).astype(np.uint16 if n < 2**16 else np.int64)[owner]
            tokens, beyond, q = beyond_gate(stale, scope, scopes, sat.alpha)
            factor = kernel(torch.from_numpy(stale[beyond]), torch.from_numpy(q), sat.exponent).numpy()
            counts[:, row, column] = tokens, len(beyond), (reach[beyond] > factor).sum()
    return counts


def outward_reach(base: tuple[Tensor | float, Tensor | float], d: Tensor, advantages: Tensor) -> Tensor:
    """Return (n,) |r - 1| as a share of the base radius on that side, for tokens that the base does not clip and whose
    update leads outward; 0 for the others. SAT clips a token newly where its factor is below this (Eqs. gate,
    bands)."""
    away = bounded_exp(d) - 1.0
    reach = torch.where(away > 0, away / base[1], -away / base[0])
    return torch.where((d * advantages > 0) & (reach <= 1.0), reach, 0.0)


def beyond_gate(
    ascending: np.ndarray, scope: np.ndarray, scopes: int, alpha: float
) -> tuple[int, np.ndarray, np.ndarray]:
    """Find the tokens that are staler than q > 0, the alpha-quantile of their scope (Eq. quantile).

    Args:
        ascending: (n,) staleness, |d| in the paper, the smallest first.
        scope: (n,) scope of each; those of `scopes` and beyond do not count.

    Returns:
        (tokens in the first `scopes` scopes, indices of those beyond their q, the q of each of these).
    """
    counts = np.bincount(scope, minlength=scopes)[:scopes]
    by_scope = np.argsort(scope, kind="stable")[: counts.sum()]
    values = ascending[by_scope]
    level = Fraction(str(alpha))
    ranks = -(-counts * level.numerator // level.denominator)
    filled = counts > 0
    quantiles = values[(np.cumsum(counts) - counts + ranks - 1)[filled]]
    q = np.repeat(quantiles, counts[filled])
    open_ = (values > q) & (q > 0)
    return len(values), by_scope[open_], q[open_]
