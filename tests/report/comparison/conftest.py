"""A made-up grid that the tests of a comparison share, and its report."""

import pytest
from synthetic import write_grid

from sat_slime.report.comparison.collection import collect
from sat_slime.report.comparison.contrasts import Comparison
from sat_slime.report.comparison.page import write_grid_report

METHODS = ("grpo", "gspo", "grpo-tis", "dppo", "sat-grpo", "sat-gspo", "sat-gspo-r3")


@pytest.fixture(scope="session")
def grid(tmp_path_factory):
    """Seven methods x 2 lags x 3 seeds: a collapsed run, a failed one, a missing one, a cell with one seed."""
    return write_grid(tmp_path_factory.mktemp("grids") / "demo", METHODS)


@pytest.fixture(scope="session")
def comparison(grid):
    return Comparison(collect([grid]))


@pytest.fixture(scope="session")
def page(grid):
    (written,) = write_grid_report([grid])
    return written.read_text()
