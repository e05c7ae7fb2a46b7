"""The tolerated lag: by hand, and its interval by brute force."""

import itertools

import numpy as np
import pytest

from sat_slime.report.comparison.lag_tolerance import Tolerance, tolerated_lag


def by_hand(scores, seeds):
    lags = sorted(lag for lag in scores if lag >= 1)
    least = 0.95 * sum(scores[1][seed] for seed in seeds)
    return max(lag for lag in lags if sum(scores[lag][seed] for seed in seeds) >= least)


def test_the_largest_lag_that_keeps_its_accuracy():
    scores = {0: {0: 0.1}, 1: {0: 0.8}, 2: {0: 0.78}, 4: {0: 0.7}, 8: {0: 0.77}, 16: {0: 0.2}}
    assert tolerated_lag(scores) == Tolerance(lag=8, low=8, high=8, largest=16, n=1)
    scores[16][0] = 0.95 * 0.8
    assert tolerated_lag(scores).lag == 16
    assert tolerated_lag({1: {0: 0.8}, 2: {0: 0.1}}).lag == 1


@pytest.mark.parametrize("seed", range(8))
def test_the_interval_is_that_of_all_resampled_seeds(seed):
    random = np.random.default_rng(seed)
    scores = {lag: dict(enumerate(0.7 - 0.004 * lag + 0.05 * random.normal(size=5))) for lag in (1, 2, 4, 8, 16, 32)}
    found = tolerated_lag(scores)
    drawn = sorted(by_hand(scores, seeds) for seeds in itertools.product(range(5), repeat=5))
    # the least value that at least 2.5 % (97.5 %) of the draws do not exceed
    low, high = (next(x for x in drawn if sum(y <= x for y in drawn) >= share * len(drawn)) for share in (0.025, 0.975))
    assert (found.lag, found.low, found.high, found.n) == (by_hand(scores, range(5)), low, high, 5)


def test_a_lag_that_a_seed_lacks_is_left_out():
    scores = {1: {0: 0.8, 1: 0.8}, 8: {0: 0.79, 1: 0.79}, 16: {0: 0.79}}
    assert tolerated_lag(scores) == Tolerance(lag=8, low=8, high=8, largest=8, n=2)


@pytest.mark.parametrize("scores", [{}, {1: {0: 0.8}}, {2: {0: 0.8}, 4: {0: 0.8}}, {1: {0: 0.8}, 2: {1: 0.8}}])
def test_nothing_is_told_without_lag_1_and_another_of_its_seeds(scores):
    assert tolerated_lag(scores) is None


def test_many_seeds_are_drawn_at_random():
    scores = {1: dict.fromkeys(range(9), 0.8), 8: dict.fromkeys(range(9), 0.7)}
    assert tolerated_lag(scores) == Tolerance(lag=1, low=1, high=1, largest=8, n=9)


def test_a_method_that_learns_nothing_at_lag_1_tolerates_nothing():
    assert tolerated_lag({1: {0: 0.0, 1: 0.0}, 8: {0: 0.0, 1: 0.0}}) is None
