"""Gate rate of SAT against the number of responses that its quantile is taken over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from sat_slime.experiment.replay.gradient import StepView
from sat_slime.experiment.replay.selection import Candidate
from sat_slime.objective import SAT

SIZES = tuple(2**power for power in range(9))
"""Responses in the scope: 1 to 256."""
ORDERS = ("grouped", "shuffled")
"""As they were sampled, the responses to a prompt beside one another; or at random."""


@dataclass
class Sweep:
    """Tokens in whole scopes and those of them beyond the gate, of one SAT method."""

    tokens: np.ndarray = field(default_factory=lambda: np.zeros((len(ORDERS), len(SIZES)), dtype=np.int64))
    gated: np.ndarray = field(default_factory=lambda: np.zeros((len(ORDERS), len(SIZES)), dtype=np.int64))

    def add(self, other: Sweep) -> None:
        """Further steps."""
        self.tokens += other.tokens
        self.gated += other.gated

    def rates(self) -> np.ndarray:
        """(orders, sizes) share of tokens; NaN where no step had so many responses."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.tokens > 0, self.gated / self.tokens, np.nan)


def sweep_step(candidates: Sequence[Candidate], view: StepView, seed: int) -> dict[int, Sweep]:
    """The sweep of each SAT method over one step. Scopes are of consecutive responses; those left over, too few for a
    whole one, do not count."""
    step = view.batch
    lengths = step.lengths.numpy()
    owner = np.repeat(np.arange(len(lengths)), lengths)[step.mask.numpy()]
    sampled = np.arange(len(lengths)) if step.order is None else step.order.numpy()
    orders = (sampled, np.random.default_rng(seed).permutation(len(lengths)))
    found: dict[int, Sweep] = {}
    seen: dict[tuple[str, str, float], int] = {}
    for index, candidate in enumerate(candidates):
        method = candidate.method
        if not isinstance(method.trust_region, SAT):
            continue
        key = method.ratio, method.denominator, method.trust_region.alpha
        if key not in seen:
            seen[key] = index
            stale = view.log_ratio(method).abs().numpy()[step.mask.numpy()]
            found[index] = _sweep(stale, owner, orders, method.trust_region.alpha)
        else:
            found[index] = found[seen[key]]
    return found


def _sweep(stale: np.ndarray, owner: np.ndarray, orders: Sequence[np.ndarray], alpha: float) -> Sweep:
    sweep = Sweep()
    ascending = np.argsort(stale, kind="stable")
    stale, owner = stale[ascending], owner[ascending]
    for row, order in enumerate(orders):
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        for column, size in enumerate(SIZES):
            if (scopes := len(order) // size) == 0:
                continue
            # a type of 16 bits makes numpy sort by radix
            scope = (place // size).astype(np.uint16 if scopes < 2**16 else np.int64)[owner]
            sweep.tokens[row, column], sweep.gated[row, column] = beyond_gate(stale, scope, scopes, alpha)
    return sweep


def beyond_gate(ascending: np.ndarray, scope: np.ndarray, scopes: int, alpha: float) -> tuple[int, int]:
    """(tokens in the first `scopes` scopes, those with |d| > q > 0), q the alpha-quantile of each scope (Eq. quantile).

    Args:
        ascending: (n,) |d|, the smallest first.
        scope: (n,) scope of each.
    """
    by_scope = np.argsort(scope, kind="stable")
    counts = np.bincount(scope, minlength=scopes)[:scopes]
    values = ascending[by_scope[: counts.sum()]]
    level = Fraction(str(alpha))
    ranks = -(-counts * level.numerator // level.denominator)
    filled = counts > 0
    ends = np.cumsum(counts)
    quantiles = values[(ends - counts + ranks - 1)[filled]]
    q = np.repeat(quantiles, counts[filled])
    return len(values), int(((values > q) & (q > 0)).sum())
