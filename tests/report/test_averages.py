import numpy as np

from sat_slime.report.averages import smooth


def test_smoothing_over_a_whole_period_flattens_a_sawtooth():
    sawtooth = np.tile(np.arange(1.0, 9.0), 10)
    inner = smooth(sawtooth, 8)[8:-8]
    np.testing.assert_allclose(inner, 4.5)


def test_smoothing_leaves_out_nan():
    np.testing.assert_allclose(smooth(np.array([1.0, np.nan, 3.0]), 3), [1.0, 2.0, 3.0])
    assert np.isnan(smooth(np.array([np.nan, np.nan]), 2)).all()
