"""Means over seeds with their intervals, and differences paired by seed. Every test is named; every seed is fixed.

With the three to five seeds that a grid has, no interval is sharp. A paired bootstrap of three differences cannot reach
beyond the smallest and the largest of them, and leaves out 0 by luck in one of four; Student's t allows for so few
seeds, and assumes that the differences are normal. So a difference counts as told from noise only where neither of
them holds 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

LEVEL = 0.95
RESAMPLES = 20_000
BOOTSTRAP_SEED = 20_260_718
TEST = (
    f"paired by seed: {LEVEL:.0%} percentile bootstrap of the mean difference ({RESAMPLES:,} resamples of the seeds, "
    f"random seed {BOOTSTRAP_SEED}) and two-sided paired t-test; Holm's correction over the "
    "comparisons of one group and quantity"
)
Verdict = Literal["one seed", "within noise", "lead", "beyond noise"]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds."""

    mean: float
    low: float
    """Lower end of the 95 % interval; NaN with fewer than two seeds."""
    high: float
    n: int
    """Seeds."""


@dataclass(frozen=True)
class Difference:
    """A minus B, paired by seed."""

    mean: float
    low: float
    """Lower end of the bootstrap interval; NaN with fewer than two pairs."""
    high: float
    p_value: float
    """p of the paired t-test, two-sided."""
    n: int
    """Pairs."""
    p_holm: float = math.nan
    """p_value after Holm's correction; NaN until corrected."""

    @property
    def verdict(self) -> Verdict:
        """beyond noise: not 0, also after the correction; lead: not 0 only where nothing else was tested; else within
        noise."""
        if self.n < 2:
            return "one seed"
        alpha = 1 - LEVEL
        if not (self.low > 0 or self.high < 0) or not self.p_value < alpha:
            return "within noise"
        return "beyond noise" if self.p_holm < alpha else "lead"


def mean_interval(values: Sequence[float]) -> Estimate:
    """Return the mean over seeds and Student's 95 % interval. NaN means that a seed lacks the quantity; it is left
    out."""
    known = np.array([value for value in values if math.isfinite(value)], dtype=float)
    n = len(known)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(known.mean())
    if n == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    from scipy.special import stdtrit  # as scipy.stats.t.ppf, which takes long to import

    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * _standard_error(known)
    return Estimate(mean, mean - half, mean + half, n)


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Difference:
    """Return a - b over the seeds that both have, each {seed: value}."""
    pairs = np.array([a[s] - b[s] for s in sorted(a.keys() & b.keys()) if math.isfinite(a[s] - b[s])], dtype=float)
    n = len(pairs)
    if n < 2:
        return Difference(float(pairs[0]) if n else math.nan, math.nan, math.nan, math.nan, n)
    random = np.random.default_rng(BOOTSTRAP_SEED)
    means = pairs[random.integers(n, size=(RESAMPLES, n))].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    mean, error = float(pairs.mean()), _standard_error(pairs)
    # scipy.stats.ttest_rel warns of differences that are all alike, and knows no p of those that are all 0
    t = abs(mean) / error if error > 0 else (math.inf if mean else 0.0)
    from scipy.special import stdtr  # as scipy.stats.t.sf

    within = 1 - 2 * float(stdtr(n - 1, -t))  # P(|T| <= t); p from it is exact to 1e-16, as in tables that are kept
    return Difference(mean, float(low), float(high), 1 - within, n)


def _standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """Return the same differences with p_holm, their p_value corrected for looking at all of them together."""
    tested = [i for i, difference in enumerate(differences) if math.isfinite(difference.p_value)]
    corrected, highest = list(differences), 0.0
    for rank, i in enumerate(sorted(tested, key=lambda i: differences[i].p_value)):
        highest = max(highest, min(1.0, (len(tested) - rank) * differences[i].p_value))
        corrected[i] = replace(differences[i], p_holm=highest)
    return corrected
