"""What the tests of reports share: pages without pictures, which take long to draw, and a made-up grid."""

import pytest
from synthetic import write_grid

from sat_slime.report import charts
from sat_slime.report.comparison import write_comparison
from sat_slime.report.frames import collect


@pytest.fixture(autouse=True)
def without_pictures(request, monkeypatch):
    """A page draws its charts where a test asks for `pictures`."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("sat_slime.report.page.vega_script", str)
        monkeypatch.setattr(charts.Chart, "svg", lambda self: "")


@pytest.fixture
def pictures():
    return charts.vega_script()


METHODS = ("grpo", "gspo", "grpo-tis", "dppo", "sat-grpo", "sat-gspo", "sat-gspo-r3")


@pytest.fixture(scope="session")
def grid(tmp_path_factory):
    """Seven methods x 2 lags x 3 seeds: a collapsed run, a failed one, a missing one, a cell with one seed."""
    return write_grid(tmp_path_factory.mktemp("grids") / "demo", METHODS)


@pytest.fixture(scope="session")
def collection(grid):
    return collect([grid], paper=True)


@pytest.fixture(scope="session")
def page(grid):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sat_slime.report.page.vega_script", str)
        patch.setattr(charts.Chart, "svg", lambda self: "")
        return write_comparison([grid], paper=True).read_text()
