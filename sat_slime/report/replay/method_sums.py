"""Sums of each method over tokens: those of spans add up to a step's, those of steps to a dump's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sat_slime.objective import MetricAccumulator
from sat_slime.objective.tokens import response_mean_weights
from sat_slime.report.replay.candidates import UNCLIPPED, Candidate
from sat_slime.report.replay.token_gradient import (
    FATES,
    Metrics,
    Span,
    SpanView,
    StepView,
    TokenGradient,
    gate_metrics,
    token_gradient,
)

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


def span_result(candidates: Sequence[Candidate], step: StepView, span: Span, token_mean: bool) -> SpanResult:
    """Sum up what every method does on a span. token_mean: tokens weigh alike, not responses."""
    view = SpanView(step, span)
    mask, advantages = view.mask, view.advantages
    weights = mask.double() if token_mean else response_mean_weights(mask, view.lengths, 1)
    counted = mask & (advantages != 0)
    mismatch = (step.batch.log_probs - step.batch.rollout_log_probs)[span.tokens]
    inverse = torch.where(counted, 1.0 / torch.where(counted, advantages, 1.0), 0.0)
    negative = (advantages < 0).to(torch.int64)
    bins = torch.bucketize(mismatch, _EDGES, right=True) + negative * _BINS
    bins.masked_fill_(~counted, 2 * _BINS)  # a bin after the last one: left out

    sums = Sums.none(len(candidates))
    sums.tokens = int(mask.sum())
    sums.curve_tokens = _binned(bins, None).astype(np.int64)
    scopes: dict[tuple[int, str], list[Metrics]] = {}
    rows = torch.empty(len(candidates) + 1, len(mask), dtype=torch.float64)
    cells: dict[tuple[str, str], Tensor] = {}
    for index, candidate in enumerate(candidates):
        method = candidate.method
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
