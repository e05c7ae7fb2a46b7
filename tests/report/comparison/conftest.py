"""A made-up grid and a made-up study that the tests of a comparison share."""

import pytest
from made_up_study import LAGS
from made_up_study import write_grid as write_study_grid
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


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A sweep, two radii, a setting, another method, and the runs that had the machine to themselves."""
    folder = tmp_path_factory.mktemp("study")
    pair = ("gspo", "sat-gspo")
    write_study_grid(folder, "sweep", pair, LAGS)
    for radius in (0.05, 0.01):
        clip = {"method.clip.eps_low": radius, "method.clip.eps_high": radius}
        write_study_grid(folder, f"eps-{radius}", pair, (8, 32), clip)
    write_study_grid(folder, "half-lr", ("gspo",), (8,), {"train.lr": 1e-4})
    write_study_grid(folder, "methods", ("grpo",), (1, 8), seeds=(0, 1))
    write_study_grid(folder, "alone", ("gspo",), (0, 1, 8), parallel=1)
    return folder
