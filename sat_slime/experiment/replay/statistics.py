"""What is counted: sums over tokens that add up exactly, over spans to a step and over steps to a dump."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sat_slime.experiment.replay.gradient import FATES, Span, StepView, TokenGradient, token_gradient
from sat_slime.experiment.replay.selection import UNCLIPPED, Candidate
from sat_slime.objective import SAT, Method, MetricAccumulator, policy_surrogate, response_mean_weights

GROUPS = ("A > 0, above", "A > 0, below", "A < 0, above", "A < 0, below")
"""Tokens by the sign of the advantage and the side on which the ratio lies that the method judges by."""
EDGES = np.concatenate([-np.geomspace(10, 1e-3, 17), np.geomspace(1e-3, 10, 17)])
"""Of the token's d = log pi - log mu, nats: four to a decade on either side."""
SCOPES = ("microbatch", "step")


@dataclass
class MethodSums:
    """Sums of one method over the tokens with an advantage, v = g / A being its weight on A grad log pi."""

    fates: np.ndarray = field(default_factory=lambda: np.zeros((len(GROUPS), len(FATES)), dtype=np.int64))
    """(groups, fates) tokens."""
    weight: float = 0.0
    """sum |v|."""
    weight_squared: float = 0.0
    weight_max: float = 0.0
    curve: np.ndarray = field(default_factory=lambda: np.zeros((2, len(EDGES) + 1)))
    """(sign of A, bin of d) sum of v."""

    def add(self, other: MethodSums) -> None:
        """Further tokens."""
        self.fates += other.fates
        self.weight += other.weight
        self.weight_squared += other.weight_squared
        self.weight_max = max(self.weight_max, other.weight_max)
        self.curve += other.curve

    @property
    def tokens(self) -> int:
        """Tokens with an advantage."""
        return int(self.fates.sum())

    def share(self, fate: int) -> float:
        """Of the tokens with an advantage."""
        return float(self.fates[:, fate].sum() / max(self.tokens, 1))

    @property
    def effective(self) -> float:
        """(sum |v|)^2 / (n sum v^2): the share of the tokens that carry the update; NaN where there is none."""
        below = self.tokens * self.weight_squared
        return self.weight**2 / below if below > 0 else math.nan


@dataclass
class Sums:
    """Sums of all methods over the same tokens. M methods, the last row and column of `products` that of UNCLIPPED."""

    methods: list[MethodSums]
    products: np.ndarray
    """(M + 1, M + 1) sums of (w g) (w h) over tokens."""
    tokens: int = 0
    """Active ones."""
    curve_tokens: np.ndarray = field(default_factory=lambda: np.zeros((2, len(EDGES) + 1), dtype=np.int64))
    """(sign of A, bin of d) tokens."""

    @classmethod
    def none(cls, methods: int) -> Sums:
        return cls([MethodSums() for _ in range(methods)], np.zeros((methods + 1, methods + 1)))

    def add(self, other: Sums) -> None:
        """Further tokens."""
        for mine, its in zip(self.methods, other.methods, strict=True):
            mine.add(its)
        self.products += other.products
        self.tokens += other.tokens
        self.curve_tokens += other.curve_tokens

    def cosines(self) -> np.ndarray:
        """(M + 1, M + 1) cosines between the methods' w g; NaN beside a gradient that is zero throughout."""
        norms = np.sqrt(np.diag(self.products))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.clip(self.products / np.outer(norms, norms), -1, 1)


class Cosines:
    """Mean and least over steps of the cosines of M methods and UNCLIPPED."""

    def __init__(self, methods: int):
        shape = methods + 1, methods + 1
        self._sum, self._steps = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        self._least = np.full(shape, np.inf)

    def add(self, cosines: np.ndarray) -> None:
        """A step; NaN where one of the gradients is zero, which then does not count."""
        known = np.isfinite(cosines)
        self._sum += np.where(known, cosines, 0)
        self._steps += known
        self._least = np.where(known, np.minimum(self._least, cosines), self._least)

    @property
    def mean(self) -> np.ndarray:
        """(M + 1, M + 1), NaN where no step had both gradients."""
        with np.errstate(invalid="ignore"):
            return self._sum / self._steps

    @property
    def least(self) -> np.ndarray:
        """As `mean`."""
        return np.where(self._steps > 0, self._least, np.nan)


@dataclass
class SpanResult:
    """What a span of a step adds."""

    sums: Sums
    scopes: dict[tuple[int, str], list[tuple[int, dict[str, Tensor]]]]
    """Of each SAT method under each scope of its quantile."""


def span_result(candidates: Sequence[Candidate], view: StepView, span: Span, token_mean: bool) -> SpanResult:
    """Every method on a span. token_mean: tokens weigh alike, not responses."""
    step = view.batch
    lengths = step.lengths[span.responses]
    mask, advantages = step.mask[span.tokens], step.advantages[span.tokens]
    weights = mask.double() if token_mean else response_mean_weights(mask, lengths, 1)
    counted = mask & (advantages != 0)
    mismatch = step.log_probs[span.tokens] - step.rollout_log_probs[span.tokens]
    inverse = torch.where(counted, 1.0 / torch.where(counted, advantages, 1.0), 0.0)
    negative = (advantages < 0).to(torch.int64)
    bins = torch.bucketize(mismatch, _EDGES, right=True) + negative * _BINS
    bins.masked_fill_(~counted, 2 * _BINS)  # beyond all: left out

    sums = Sums.none(len(candidates))
    sums.tokens = int(mask.sum())
    sums.curve_tokens = _binned(bins, None).astype(np.int64)
    scopes: dict[tuple[int, str], list[tuple[int, dict[str, Tensor]]]] = {}
    rows = torch.empty(len(candidates) + 1, len(mask), dtype=torch.float64)
    cells: dict[tuple[str, str], Tensor] = {}
    for index, candidate in enumerate(candidates):
        method = candidate.method
        gradient = token_gradient(method, view, span)
        if isinstance(method.trust_region, SAT):
            for scope in SCOPES:
                own = method.trust_region.scope == scope
                scopes[index, scope] = gradient.metrics if own else _gate(method, view, span, scope)
        key = method.ratio, method.denominator
        if key not in cells:
            cells[key] = _cells(method, view, span, mismatch, negative, counted)
        _add(sums.methods[index], gradient, cells[key], inverse, bins)
        torch.mul(weights, gradient.weights, out=rows[index])
    torch.mul(weights, token_gradient(UNCLIPPED, view, span).weights, out=rows[-1])
    sums.products = (rows @ rows.T).numpy()
    return SpanResult(sums, scopes)


_EDGES, _BINS = torch.tensor(EDGES, dtype=torch.float32), len(EDGES) + 1


def _cells(method: Method, view: StepView, span: Span, mismatch: Tensor, negative: Tensor, counted: Tensor) -> Tensor:
    """(N,) int64: group of each token times the number of fates; beyond all groups where it does not count."""
    # Against the trainer the ratio is 1 at the first optimizer step; what is judged then is pi / mu of the token.
    judged = mismatch if method.denominator == "trainer" else view.log_ratio(method)[span.tokens]
    cells = (negative * 2 + (judged < 0)) * len(FATES)
    return cells.masked_fill_(~counted, len(GROUPS) * len(FATES))


def _add(sums: MethodSums, gradient: TokenGradient, cells: Tensor, inverse: Tensor, bins: Tensor) -> None:
    n = len(GROUPS) * len(FATES)
    counts = torch.bincount(cells + gradient.fates, minlength=n)[:n]
    sums.fates = counts.reshape(len(GROUPS), len(FATES)).numpy()
    v = gradient.weights * inverse
    size = v.abs()
    sums.weight = float(size.sum(dtype=torch.float64))
    sums.weight_squared = float(torch.dot(v.double(), v.double()))
    sums.weight_max = float(size.amax()) if len(size) else 0.0
    sums.curve = _binned(bins, v)


def _binned(bins: Tensor, values: Tensor | None) -> np.ndarray:
    """(2, bins) counts, or sums of the values."""
    total = torch.bincount(bins, values, minlength=2 * _BINS)[: 2 * _BINS]
    return total.reshape(2, _BINS).numpy()


def _gate(method: Method, view: StepView, span: Span, scope: str) -> list[tuple[int, dict[str, Tensor]]]:
    """The metrics of SAT with its quantile over the other scope."""
    quantile = view.step_quantile(method) if scope == "step" else None
    parts = zip(span.microbatches, span.microbatch_lengths, strict=True)
    found = []
    with torch.no_grad():
        for part, lengths in parts:
            inside = slice(span.tokens.start + part.start, span.tokens.start + part.stop)
            tokens = view.tokens(method, inside, lengths)
            surrogate = policy_surrogate(method, tokens, quantile=quantile, d=view.log_ratio(method)[inside])
            found.append((tokens.n_active, surrogate.metrics))
    return found


def reduced(rows: Sequence[tuple[int, dict[str, Tensor]]]) -> dict[str, float]:
    """Metrics of micro-batches as those of their step, by the rule of a run."""
    accumulator = MetricAccumulator()
    for weight, metrics in rows:
        accumulator.add(metrics, weight)
    return accumulator.reduce()
