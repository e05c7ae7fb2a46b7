import math

import numpy as np
import pytest

from sat_slime.report.comparison.statistics import (
    Difference,
    holm,
    mean_interval,
    paired_difference,
)


def spread(n, mean):
    """n values of that mean whose standard error is 1."""
    values = np.arange(float(n))
    return mean + (values - values.mean()) * math.sqrt(n) / values.std(ddof=1)


@pytest.mark.parametrize(
    "degrees, t",
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (5, 2.57058), (9, 2.26216), (30, 2.04227)],
)
def test_students_quantiles(degrees, t):
    estimate = mean_interval(list(spread(degrees + 1, 0.5)))
    assert estimate.high - estimate.mean == pytest.approx(t, rel=1e-5)
    pairs = dict(enumerate(spread(degrees + 1, t)))
    assert paired_difference(pairs, dict.fromkeys(pairs, 0.0)).p_value == pytest.approx(0.05, abs=1e-6)


@pytest.mark.filterwarnings("error")
def test_probability_has_its_ends():
    for degrees in (1, 2, 5, 6):
        none, one = (dict.fromkeys(range(degrees + 1), value) for value in (0.0, 1.0))
        assert paired_difference(none, none).p_value == 1
        assert paired_difference(one, none).p_value == pytest.approx(0.0)


def test_interval_of_three_seeds_and_of_fewer():
    estimate = mean_interval([1.0, 2.0, 3.0])
    assert (estimate.mean, estimate.n) == (2.0, 3)
    assert estimate.high - estimate.mean == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    assert math.isnan(mean_interval([1.0]).low)
    assert mean_interval([math.nan, 1.0, 3.0]).n == 2
    assert mean_interval([]).n == 0


def test_the_interval_covers_the_mean_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        estimate = mean_interval(list(random.normal(size=3)))
        covered += estimate.low <= 0 <= estimate.high
    assert 0.93 <= covered / 1000 <= 0.97


def test_differences_are_paired_by_seed():
    noise = {0: 10.0, 1: -7.0, 2: 3.0}
    shifted = {seed: value + 0.5 + 0.01 * seed for seed, value in noise.items()}
    difference = paired_difference(shifted | {7: 99.0}, noise)
    assert difference.n == 3
    assert difference.mean == pytest.approx(0.51)
    assert difference.low == pytest.approx(0.5) and difference.high == pytest.approx(0.52)


def test_the_same_numbers_give_the_same_interval():
    a, b = {s: 0.1 * s**2 for s in range(6)}, {s: 0.3 * s for s in range(6)}
    assert paired_difference(a, b) == paired_difference(a, b)


def test_nothing_is_told_from_one_pair():
    difference = paired_difference({0: 1.0, 1: 2.0}, {0: 0.5, 2: 3.0})
    assert (difference.n, difference.verdict) == (1, "one seed")
    assert paired_difference({0: 1.0}, {1: 1.0}).n == 0


def test_equal_signs_alone_are_no_finding():
    """Three differences of one sign leave 0 out of a bootstrap; the t-test has to agree."""
    difference = paired_difference({0: 0.1, 1: 1.0, 2: 5.0}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert difference.low > 0
    assert difference.verdict == "within noise"


def test_false_findings_are_as_rare_as_they_should_be():
    random = np.random.default_rng(1)
    found = 0
    for _ in range(200):
        a, b = (dict(enumerate(random.normal(size=3))) for _ in range(2))
        (difference,) = holm([paired_difference(a, b)])
        found += difference.verdict != "within noise"
    assert found / 200 <= 0.08


def test_holm():
    raw = [Difference(1, 0.5, 1.5, p, 3) for p in (0.01, 0.04, 0.03, 0.2)] + [Difference(1, math.nan, 2, math.nan, 1)]
    assert [one.p_holm for one in holm(raw)[:4]] == pytest.approx([0.04, 0.09, 0.09, 0.2])
    assert [one.verdict for one in holm(raw)] == ["beyond noise", "lead", "lead", "within noise", "one seed"]
