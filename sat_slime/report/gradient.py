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
    SAT,
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
from sat_slime.objective.terms import Need, bounded_exp
from sat_slime.objective.tokens import response_mean_weights
from sat_slime.report.dumps import StepBatch

UNCLIPPED = Method(named_method("grpo").stabilizers, clip=None, called="unclipped")
"""The importance-sampled gradient r A of every token, which the others are compared with."""
KEPT, REWEIGHTED, MASKED, CLIPPED = range(4)
FATES = ("kept", "re-weighted", "masked", "clipped")
"""The fates of a token. Kept: its own term of the surrogate has the slope r A of the method's own ratio.
Re-weighted: it has another slope, as that of a score form whose weight is not r, or of a penalty. Masked: a gate drops
the token, or a weight of 0. Clipped: the clip interval holds it; this comes before masked."""

Metrics = tuple[int, dict[str, Tensor | RadiusAt]]
"""(active tokens, the metrics of policy_surrogate over them)."""


@dataclass(frozen=True, eq=False)
class TokenGradient:
    """The gradient weights of one method on some tokens of a step."""

    weights: Tensor
    """(N,) g; 0 on inactive tokens."""
    fates: Tensor
    """(N,) int64 of FATES; without meaning where A is 0 or the token inactive."""
    metrics: list[Metrics]
    """The metrics of each micro-batch, or those of all tokens at once where micro-batches make no difference."""


@dataclass(frozen=True)
class Span:
    """Consecutive micro-batches of a step that are computed together."""

    responses: slice
    tokens: slice
    microbatches: tuple[slice, ...]
    """Tokens of each micro-batch, counted from the span's first token."""
    microbatch_lengths: tuple[Tensor, ...]
    """(responses,) tokens of each response, a tensor for each micro-batch."""


def spans(batch: StepBatch, at_least: int) -> list[Span]:
    """Return the micro-batches of a step in spans; each but the last has at least so many tokens."""
    assert batch.microbatches is not None
    joined: list[Span] = []
    token = response = 0
    start = (0, 0)
    parts: list[slice] = []
    lengths: list[Tensor] = []
    for index, size in enumerate(batch.microbatches):
        lengths.append(batch.lengths[response : response + size])
        n = int(lengths[-1].sum())
        parts.append(slice(token - start[0], token - start[0] + n))
        token, response = token + n, response + size
        if token - start[0] >= at_least or index == len(batch.microbatches) - 1:
            joined.append(Span(slice(start[1], response), slice(start[0], token), tuple(parts), tuple(lengths)))
            start, parts, lengths = (token, response), [], []
    return joined


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
        step, proximal = self.batch, self.proximal(method)
        return TokenBatch(
            log_probs=step.log_probs[tokens],
            rollout_log_probs=step.rollout_log_probs[tokens],
            advantages=step.advantages[tokens],
            mask=step.mask[tokens],
            lengths=step.lengths if lengths is None else lengths,
            proximal_log_probs=None if proximal is None else proximal[tokens],
            **{need: getattr(step, need)[tokens] for need in method.needs},
        )

    def proximal(self, method: Method) -> Tensor | None:
        """Return (N,) what the method reads as proximal_log_probs; None where that is log_probs itself, or not read."""
        if method.denominator == "checkpoint":
            return self.batch.checkpoint_log_probs
        return self.batch.proximal_log_probs if method.denominator == "trainer" else None


class SpanView:
    """A span as all methods see it."""

    def __init__(self, view: StepView, span: Span):
        self.step, self.span = view, span
        self.lengths = view.batch.lengths[span.responses]
        self.mask = view.batch.mask[span.tokens]
        self.advantages = view.batch.advantages[span.tokens]
        self._tokens: dict[tuple[int, int, tuple[Need, ...]], TokenBatch] = {}
        self._slopes: dict[tuple[str, str], Tensor] = {}

    def log_ratio(self, method: Method) -> Tensor:
        """Return (n,) d of the method."""
        return self.step.log_ratio(method)[self.span.tokens]

    def slopes(self, method: Method) -> Tensor:
        """Return (n,) r A of the method's own ratio."""
        key = method.ratio, method.denominator
        if key not in self._slopes:
            self._slopes[key] = bounded_exp(self.log_ratio(method)) * self.advantages
        return self._slopes[key]

    def parts(self, method: Method, each_microbatch: bool) -> list[tuple[slice, TokenBatch]]:
        """Return (place of its tokens in the span, the tokens) of each micro-batch, or of the whole span as one."""
        if not each_microbatch:
            return [(slice(0, len(self.mask)), self._batch(method, -1, slice(0, len(self.mask)), self.lengths))]
        pieces = zip(self.span.microbatches, self.span.microbatch_lengths, strict=True)
        return [(part, self._batch(method, i, part, lengths)) for i, (part, lengths) in enumerate(pieces)]

    def _batch(self, method: Method, index: int, part: slice, lengths: Tensor) -> TokenBatch:
        key = index, id(self.step.proximal(method)), method.needs
        if key not in self._tokens:
            start = self.span.tokens.start
            self._tokens[key] = self.step.tokens(method, slice(start + part.start, start + part.stop), lengths)
        return self._tokens[key]


def token_gradient(method: Method, view: SpanView) -> TokenGradient:
    """Return g and fate of the span's tokens. SAT takes its quantile over its own scope."""
    d = view.log_ratio(method).requires_grad_()
    values: list[Tensor] = []
    clipped: list[Tensor] = []
    metrics: list[Metrics] = []
    alone = method.judge is not None and not method.threshold_is_of_the_step
    threshold = view.step.step_threshold(method) if method.threshold_is_of_the_step else None
    for part, tokens in view.parts(method, alone):
        surrogate = policy_surrogate(method, tokens, threshold=threshold, d=d[part])
        values.append(surrogate.values)
        clipped.append(surrogate.clipped)
        metrics.append((surrogate.n, surrogate.metrics))
    value = torch.cat(values) if len(values) > 1 else values[0]
    (slopes,) = torch.autograd.grad(value, d, torch.ones_like(value))
    weights = slopes
    if method.ratio == "sequence":
        [(_, whole)] = view.parts(method, each_microbatch=False)
        t = Tokens(method, whole, d=d.detach())
        weights = t.back(t.mean(t.cut(slopes)))
    held = torch.cat(clipped) if len(clipped) > 1 else clipped[0]
    return TokenGradient(weights, _fates(value.detach(), slopes, held, view.slopes(method)), metrics)


def gate_metrics(method: Method, view: SpanView, scope: str) -> list[Metrics]:
    """Return the metrics of a SAT method with its quantile over `scope`, whatever its own scope is."""
    threshold = view.step.step_threshold(method) if scope == "step" else None
    d = view.log_ratio(method)
    with torch.no_grad():
        results = [
            policy_surrogate(method, tokens, threshold=threshold, d=d[part])
            for part, tokens in view.parts(method, each_microbatch=threshold is None)
        ]
    return [(result.n, result.metrics) for result in results]


def _fates(values: Tensor, slopes: Tensor, clipped: Tensor, free: Tensor) -> Tensor:
    flat, none = slopes == 0, values == 0
    fates = torch.where(slopes == free, KEPT, REWEIGHTED)
    fates.masked_fill_(flat & none, MASKED)
    return fates.masked_fill_(flat.logical_and_(none.logical_not_()).logical_or_(clipped), CLIPPED)


# ----------------------------------------------------------------------------------------------------------------- sums

GROUPS = ("A > 0, above", "A > 0, below", "A < 0, above", "A < 0, below")
"""Tokens by the sign of the advantage and the side on which the ratio lies that the method judges by."""
EDGES = np.concatenate([-np.geomspace(10, 1e-3, 17), np.geomspace(1e-3, 10, 17)])
"""Limits of the bins of d = log pi - log mu, nats: four to a decade on either side."""
SCOPES = ("microbatch", "step")


@dataclass
class MethodSums:
    """Sums of one method over the tokens with an advantage. v = g / A is its weight on A grad log pi."""

    fates: np.ndarray = field(default_factory=lambda: np.zeros((len(GROUPS), len(FATES)), dtype=np.int64))
    """(groups, fates) tokens."""
    weight: float = 0.0
    """sum |v|."""
    weight_squared: float = 0.0
    weight_max: float = 0.0
    curve: np.ndarray = field(default_factory=lambda: np.zeros((2, len(EDGES) + 1)))
    """(sign of A, bin of d) sum of v."""

    def add(self, other: MethodSums) -> None:
        """Add the sums over further tokens."""
        self.fates += other.fates
        self.weight += other.weight
        self.weight_squared += other.weight_squared
        self.weight_max = max(self.weight_max, other.weight_max)
        self.curve += other.curve

    @property
    def tokens(self) -> int:
        """The number of tokens with an advantage."""
        return int(self.fates.sum())

    def share(self, fate: int) -> float:
        """Return the share of the tokens with an advantage that have this fate."""
        return float(self.fates[:, fate].sum() / max(self.tokens, 1))

    @property
    def effective(self) -> float:
        """(sum |v|)^2 / (n sum v^2): the share of the tokens that carry the update; NaN where there is none."""
        most = self.tokens * self.weight_squared
        return self.weight**2 / most if most > 0 else math.nan


@dataclass
class Sums:
    """Sums of all methods over the same tokens. M methods, the last row and column of `products` that of UNCLIPPED."""

    methods: list[MethodSums]
    products: np.ndarray
    """(M + 1, M + 1) sums of (w g) (w h) over tokens."""
    tokens: int = 0
    """Active tokens."""
    curve_tokens: np.ndarray = field(default_factory=lambda: np.zeros((2, len(EDGES) + 1), dtype=np.int64))
    """(sign of A, bin of d) tokens."""

    @classmethod
    def none(cls, methods: int) -> Sums:
        """Return the sums over no token."""
        return cls([MethodSums() for _ in range(methods)], np.zeros((methods + 1, methods + 1)))

    def add(self, other: Sums) -> None:
        """Add the sums over further tokens."""
        for sums, more in zip(self.methods, other.methods, strict=True):
            sums.add(more)
        self.products += other.products
        self.tokens += other.tokens
        self.curve_tokens += other.curve_tokens

    def cosines(self) -> np.ndarray:
        """Return (M + 1, M + 1) cosines between the methods' w g; NaN beside a gradient that is zero throughout."""
        norms = np.sqrt(np.diag(self.products))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.clip(self.products / np.outer(norms, norms), -1, 1)


class Cosines:
    """The cosines of M methods and UNCLIPPED: mean and minimum over the steps."""

    def __init__(self, methods: int):
        shape = methods + 1, methods + 1
        self._sum, self._steps = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        self._least = np.full(shape, np.inf)

    def add(self, cosines: np.ndarray) -> None:
        """Add the cosines of a step. A NaN, where one of the gradients is zero, does not count."""
        known = np.isfinite(cosines)
        self._sum += np.where(known, cosines, 0)
        self._steps += known
        self._least = np.where(known, np.minimum(self._least, cosines), self._least)

    @property
    def mean(self) -> np.ndarray:
        """(M + 1, M + 1) mean over the steps, NaN where no step had both gradients."""
        with np.errstate(invalid="ignore"):
            return self._sum / self._steps

    @property
    def least(self) -> np.ndarray:
        """(M + 1, M + 1) minimum over the steps, NaN where no step had both gradients."""
        return np.where(self._steps > 0, self._least, np.nan)


@dataclass
class SpanResult:
    """The sums over a span of a step."""

    sums: Sums
    scopes: dict[tuple[int, str], list[Metrics]]
    """Metrics of each SAT method under each scope of its quantile."""


def span_result(methods: Sequence[Method], step: StepView, span: Span) -> SpanResult:
    """Sum up what every method does on a span."""
    view = SpanView(step, span)
    mask, advantages = view.mask, view.advantages
    weights = response_mean_weights(mask, view.lengths, 1)
    counted = mask & (advantages != 0)
    mismatch = (step.batch.log_probs - step.batch.rollout_log_probs)[span.tokens]
    inverse = torch.where(counted, 1.0 / torch.where(counted, advantages, 1.0), 0.0)
    negative = (advantages < 0).to(torch.int64)
    bins = torch.bucketize(mismatch, _EDGES, right=True) + negative * _BINS
    bins.masked_fill_(~counted, 2 * _BINS)  # a bin after the last one: left out

    sums = Sums.none(len(methods))
    sums.tokens = int(mask.sum())
    sums.curve_tokens = _binned(bins, None).astype(np.int64)
    scopes: dict[tuple[int, str], list[Metrics]] = {}
    rows = torch.empty(len(methods) + 1, len(mask), dtype=torch.float64)
    cells: dict[tuple[str, str], Tensor] = {}
    for index, method in enumerate(methods):
        gradient = token_gradient(method, view)
        if method.sat:
            for scope in SCOPES:
                own = method.scope == scope
                scopes[index, scope] = gradient.metrics if own else gate_metrics(method, view, scope)
        key = method.ratio, method.denominator
        if key not in cells:
            # Against the trainer the ratio is 1 at the first optimizer step; what is judged then is pi / mu.
            judged = mismatch if method.denominator == "trainer" else view.log_ratio(method)
            cells[key] = (negative * 2 + (judged < 0)) * len(FATES)
            cells[key].masked_fill_(~counted, len(GROUPS) * len(FATES))  # a cell after the last one: left out
        _add(sums.methods[index], gradient, cells[key], inverse, bins)
        torch.mul(weights, gradient.weights, out=rows[index])
    torch.mul(weights, torch.where(mask, view.slopes(UNCLIPPED), 0.0), out=rows[-1])
    sums.products = (rows @ rows.T).numpy()
    return SpanResult(sums, scopes)


_EDGES, _BINS = torch.tensor(EDGES, dtype=torch.float32), len(EDGES) + 1


def _add(sums: MethodSums, gradient: TokenGradient, cells: Tensor, inverse: Tensor, bins: Tensor) -> None:
    n = len(GROUPS) * len(FATES)
    counts = torch.bincount(cells + gradient.fates, minlength=n)[:n]
    sums.fates = counts.reshape(len(GROUPS), len(FATES)).numpy()
    v = (gradient.weights * inverse).double()
    sums.weight = float(v.norm(1))
    sums.weight_squared = float(torch.dot(v, v))
    sums.weight_max = float(v.norm(math.inf)) if len(v) else 0.0
    sums.curve = _binned(bins, v)


def _binned(bins: Tensor, values: Tensor | None) -> np.ndarray:
    """Return (2, bins) counts, or sums of the values."""
    total = torch.bincount(bins, values, minlength=2 * _BINS)[: 2 * _BINS]
    return total.reshape(2, _BINS).numpy()


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


def _counts() -> np.ndarray:
    return np.zeros((len(ORDERS), len(SIZES)), dtype=np.int64)


@dataclass
class Sweep:
    """Counts by order and size of the scope: the tokens in whole scopes, how many of them lie beyond the gate of one
    SAT method, and how many it newly clips."""

    tokens: np.ndarray = field(default_factory=_counts)
    gated: np.ndarray = field(default_factory=_counts)
    newly: np.ndarray = field(default_factory=_counts)

    def add(self, other: Sweep) -> None:
        """Add the counts of further steps."""
        self.tokens += other.tokens
        self.gated += other.gated
        self.newly += other.newly

    def rates(self, which: np.ndarray) -> np.ndarray:
        """Return (orders, sizes) the share of the tokens that `gated` or `newly` is; NaN where no step had so many
        responses."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.tokens > 0, which / self.tokens, np.nan)


def sweep_step(methods: Sequence[Method], view: StepView, seed: int) -> dict[int, Sweep]:
    """Return the sweep of each SAT method over one step. A scope is a number of consecutive responses; what is left
    over, too few for a whole scope, does not count. Other gates of the method are not applied."""
    step = view.batch
    lengths, mask = step.lengths.numpy(), step.mask
    owner = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[mask.numpy()]
    sampled = np.arange(len(lengths)) if step.order is None else step.order.numpy()
    orders = (sampled, np.random.default_rng(seed).permutation(len(lengths)))
    sweeps: dict[int, Sweep] = {}
    for index, method in enumerate(methods):
        if method.sat and method.clip:
            t = Tokens(method, view.tokens(method), d=view.log_ratio(method))
            reach = outward_reach(method.radii(t), t.d, t.A)
            sweeps[index] = _sweep_of(method.sat, method.sat.scores(t).numpy(), reach.numpy(), owner, orders)
    return sweeps


def outward_reach(base: tuple[Tensor | float, Tensor | float], d: Tensor, advantages: Tensor) -> Tensor:
    """Return (n,) |r - 1| as a share of the base radius on that side, for tokens that the base does not clip and whose
    update leads outward; 0 for the others. SAT clips a token newly where its factor is below this (Eqs. gate,
    bands)."""
    away = bounded_exp(d) - 1.0
    reach = torch.where(away > 0, away / base[1], -away / base[0])
    return torch.where((d * advantages > 0) & (reach <= 1.0), reach, 0.0)


def _sweep_of(sat: SAT, stale: np.ndarray, reach: np.ndarray, owner: np.ndarray, orders: Sequence[np.ndarray]) -> Sweep:
    sweep = Sweep()
    ascending = np.argsort(stale, kind="stable")
    stale, reach, owner = stale[ascending], reach[ascending], owner[ascending]
    for row, order in enumerate(orders):
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order))
        for column, size in enumerate(SIZES):
            if (scopes := len(order) // size) == 0:
                continue
            # a type of 16 bits makes numpy sort by radix
            scope = (place // size).astype(np.uint16 if len(order) < 2**16 else np.int64)[owner]
            tokens, beyond, q = beyond_gate(stale, scope, scopes, sat.alpha)
            factor = kernel(torch.from_numpy(stale[beyond]), torch.from_numpy(q), sat.exponent).numpy()
            sweep.tokens[row, column] = tokens
            sweep.gated[row, column] = len(beyond)
            sweep.newly[row, column] = (reach[beyond] > factor).sum()
    return sweep


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
