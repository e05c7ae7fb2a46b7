"""The scope sweep: SAT's gate rate by the number of responses that its quantile is taken over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from sat_slime.objective import SAT, Method, Tokens
from sat_slime.objective.sat import kernel
from sat_slime.objective.terms import bounded_exp
from sat_slime.report.replay.candidates import Candidate
from sat_slime.report.replay.token_gradient import StepView

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


def sweep_step(candidates: Sequence[Candidate], view: StepView, seed: int) -> dict[int, Sweep]:
    """Return the sweep of each SAT method over one step. A scope is a number of consecutive responses; what is left
    over, too few for a whole scope, does not count. Other gates of the method are not applied."""
    step = view.batch
    lengths, mask = step.lengths.numpy(), step.mask
    owner = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[mask.numpy()]
    sampled = np.arange(len(lengths)) if step.order is None else step.order.numpy()
    orders = (sampled, np.random.default_rng(seed).permutation(len(lengths)))
    sweeps: dict[int, Sweep] = {}
    for index, candidate in enumerate(candidates):
        method = candidate.method
        if method.sat and method.clip:
            t = Tokens(method, view.tokens(method), d=view.log_ratio(method))
            sweeps[index] = _sweep(method.sat, method.sat.scores(t).numpy(), _reach(method, t).numpy(), owner, orders)
    return sweeps


def _reach(method: Method, t: Tokens) -> Tensor:
    return outward_reach(method.radii(t), t.d, t.A)


def outward_reach(base: tuple[Tensor | float, Tensor | float], d: Tensor, advantages: Tensor) -> Tensor:
    """Return (n,) |r - 1| as a share of the base radius on that side, for tokens that the base does not clip and whose
    update leads outward; 0 for the others. SAT clips a token newly where its factor is below this (Eqs. gate,
    bands)."""
    away = bounded_exp(d) - 1.0
    reach = torch.where(away > 0, away / base[1], -away / base[0])
    return torch.where((d * advantages > 0) & (reach <= 1.0), reach, 0.0)


def _sweep(sat: SAT, stale: np.ndarray, reach: np.ndarray, owner: np.ndarray, orders: Sequence[np.ndarray]) -> Sweep:
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
