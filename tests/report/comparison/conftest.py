"""A made-up grid that the tests of a comparison share."""

import pytest
from synthetic import write_grid

from sat_slime.report.comparison.compared_runs import collect
from sat_slime.report.comparison.comparison_report import write_comparison
from sat_slime.report.comparison.contrasts import Comparison

METHODS = ("grpo", "gspo", "grpo-tis", "dppo", "sat-grpo", "sat-gspo", "sat-gspo-r3")


@pytest.fixture(scope="session")
def grid(tmp_path_factory):
    """Seven methods x 2 lags x 3 seeds: a collapsed run, a failed one, a missing one, a cell with one seed."""
    return write_grid(tmp_path_factory.mktemp("grids") / "demo", METHODS)


@pytest.fixture(scope="session")
def comparison(grid):
    return Comparison(collect([grid]), paper=True)


@pytest.fixture(scope="session")
def page(grid):
    (written,) = write_comparison([grid], paper=True)
    return written.read_text()
