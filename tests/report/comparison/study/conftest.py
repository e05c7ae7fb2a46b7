"""A made-up study that the tests share."""

import pytest
from made_up_study import LAGS, write_grid


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A sweep, two radii, a setting, another method, and the runs that had the machine to themselves."""
    folder = tmp_path_factory.mktemp("study")
    pair = ("gspo", "sat-gspo")
    write_grid(folder, "sweep", pair, LAGS)
    for radius in (0.05, 0.01):
        clip = {"method.clip.eps_low": radius, "method.clip.eps_high": radius}
        write_grid(folder, f"eps-{radius}", pair, (8, 32), clip)
    write_grid(folder, "half-lr", ("gspo",), (8,), {"train.lr": 1e-4})
    write_grid(folder, "methods", ("grpo",), (1, 8), seeds=(0, 1))
    write_grid(folder, "alone", ("gspo",), (0, 1, 8), parallel=1)
    return folder
