"""The lag that a method tolerates: the largest at which it still keeps most of its accuracy at lag 1."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sat_slime.report.comparison.contrasts import Scores
from sat_slime.report.comparison.statistics import BOOTSTRAP_SEED, LEVEL, RESAMPLES
from sat_slime.report.comparison.studies import StudyGrid

KEPT = 0.95
"""Share of the accuracy at lag 1 that is kept at a tolerated lag."""
REFERENCE = 1


@dataclass(frozen=True)
class Tolerance:
    """The tolerated lag of a method."""

    lag: int
    low: int
    """Lower end of the bootstrap's interval; the same as `lag` with one seed."""
    high: int
    largest: int
    """The largest lag that all seeds ran: one that is tolerated is a lower bound."""
    n: int
    """Seeds."""


def tolerated_lag(scores: Mapping[int, Scores]) -> Tolerance | None:
    """Return the largest lag at which the mean over the seeds is at least KEPT of that at lag 1.

    Args:
        scores: {lag: {seed: late accuracy}}; lags below 1 are left out, and those that some seed of lag 1 lacks, as
            where a grid has not ended.

    Returns:
        None without lag 1 or another lag, and where nothing is learned at lag 1. The interval is that of resampled
        seeds: all ways to draw them where there are at most six, else random ones.
    """
    seeds = sorted(scores.get(REFERENCE, ()))
    lags = sorted(lag for lag in scores if lag >= REFERENCE and set(seeds) <= set(scores[lag]))
    if len(lags) < 2 or not seeds:
        return None
    values = np.array([[scores[lag][seed] for seed in seeds] for lag in lags])
    if not values[0].any():
        return None
    draws = _draws(len(seeds))
    means = values[:, draws].mean(axis=2)
    tolerated = _largest(np.array(lags), means)
    low, high = np.quantile(tolerated, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
    own = _largest(np.array(lags), values.mean(axis=1, keepdims=True))[0]
    return Tolerance(int(own), int(low), int(high), lags[-1], len(seeds))


def tolerance_of(grid: StudyGrid, method: str) -> Tolerance | None:
    """Return the tolerated lag of a method in a sweep."""
    scores = {lag: grid.scores(method, lag, "late") for lag in grid.lags}
    return tolerated_lag({lag: by_seed for lag, by_seed in scores.items() if by_seed})


def _largest(lags: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return (draws,) the largest lag that keeps enough. means (lags, draws), those at lag 1 first."""
    kept = means >= KEPT * means[0]
    return lags[len(lags) - 1 - kept[::-1].argmax(axis=0)]


def _draws(seeds: int) -> np.ndarray:
    """Return (draws, seeds) indices of seeds."""
    if seeds <= 6:
        return np.array(list(itertools.product(range(seeds), repeat=seeds)))
    return np.random.default_rng(BOOTSTRAP_SEED).integers(seeds, size=(RESAMPLES, seeds))
