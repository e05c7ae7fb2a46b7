import numpy as np

from sat_slime.report.comparison import objective_figures as geometry


def test_geometry_is_that_of_the_papers_masks():
    """Eqs. app-ppo-mask and app-dppo-mask; Proposition geometry (iii) for SAT."""
    r, a = np.meshgrid(geometry.RATIOS, geometry.ADVANTAGES)
    outward = a * (r - 1) > 0
    clear = np.minimum(np.abs(np.abs(r - 1) - 0.2), np.abs(np.abs(r - 1) - 0.1)) > 1e-9  # off the kinks
    ppo, dppo = geometry.by_method("ppo"), geometry.by_method("dppo")
    np.testing.assert_array_equal((ppo == 0)[clear], (outward & (np.abs(r - 1) > 0.2))[clear])
    np.testing.assert_array_equal((dppo == 0)[clear], (outward & (np.abs(r - 1) > 0.1))[clear])  # delta / mu
    np.testing.assert_allclose(ppo[ppo != 0], a[ppo != 0], rtol=1e-12)


def test_sat_stops_more_than_ppo_and_only_outward():
    r, a = np.meshgrid(geometry.RATIOS, geometry.ADVANTAGES)
    ppo = geometry.by_method("ppo")
    for sat in (geometry.with_fixed_factor(), geometry.by_method("sat-grpo", geometry.QUANTILE)):
        assert ((ppo == 0) <= (sat == 0)).all()
        newly = (sat == 0) & (ppo != 0)
        assert newly.any() and (a * (r - 1) > 0)[newly].all()
    fixed = (geometry.with_fixed_factor() == 0) & (ppo != 0)
    assert 0.12 <= np.abs(r - 1)[fixed].min() <= 0.125 + 1e-9  # beyond 0.2 x 0.6
    np.testing.assert_array_equal(geometry.by_method("sat-grpo", float("inf")), ppo)


def test_rectangles_are_the_regions():
    """Each cell of the plane lies in one rectangle, of its kind."""
    for _, slopes, _ in geometry.PANELS:
        kind = geometry.regions(slopes())
        rectangles = geometry.rectangles(kind).values
        assert len(rectangles) < 100
        names = [look.name for look in geometry.LOOKS]
        for (row, column), one in np.ndenumerate(kind[::7, ::7]):
            r, a = geometry.RATIOS[7 * column], geometry.ADVANTAGES[7 * row]
            at = [b["line"] for b in rectangles if b["x"] <= r + 1e-9 <= b["x2"] and b["y"] <= a + 1e-9 <= b["y2"]]
            assert at and at[-1] == names[one]
