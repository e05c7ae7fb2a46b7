"""Every method of the paper at lag 1 and 8 trains through the real slime, at its lag, with the mismatch to expect.

    pytest -m slow tests/slime_whole/test_all_methods.py --slime DIR --megatron DIR       about an hour

`bench/slime_cells.py` prints the table of such a grid.
"""

import os
import statistics
import subprocess
from pathlib import Path

import pytest
import yaml
from whole_run import COMMAND, ROOT, WholeRun, environment

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(3 * 3600)]

GRID = ROOT / "configs" / "grid" / "laptop.yaml"
LAB_GRID = GRID.with_name("laptop-lab.yaml")
PLAN = yaml.safe_load(GRID.read_text())
CELLS = pytest.mark.parametrize("lag", PLAN["lags"])
METHODS = pytest.mark.parametrize("method", PLAN["methods"])
MAX_RATIO = 2.0
"""The factor by which d_pi of the two runtimes may differ: settings are the same, but not the order of prompts in a
batch and the sampling."""


def run_grid(file: Path, folder: Path, *options: str) -> Path:
    """Runs `sat-slime grid` to its end, from where it was, and returns the folder of its runs."""
    command = [*COMMAND, "grid", str(file), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "grids" / yaml.safe_load(file.read_text())["name"] / "runs"


@pytest.fixture(scope="module")
def slime_cells(slime):
    """The folder of the grid's runs. SAT_SLIME_CELLS names a folder in which it has run already, or is to run."""
    folder = Path(os.environ.get("SAT_SLIME_CELLS") or slime.runs)
    return run_grid(GRID, folder, *slime.places)


@pytest.fixture(scope="module")
def lab_cells(slime_cells):
    """The same cells on the lab runtime."""
    return run_grid(LAB_GRID, slime_cells.parents[2], "--seeds", str(PLAN["seeds"][0]))


def cell(runs: Path, method: str, lag: int) -> WholeRun:
    return WholeRun(runs / f"{method}-lag{lag}-seed{PLAN['seeds'][0]}", 0, "")


@METHODS
@CELLS
def test_the_lag_is_that_of_the_versions_that_came_back(slime_cells, method, lag):
    run = cell(slime_cells, method, lag)
    assert run.column("step") == list(range(1, 11))
    assert run.column("lag/max") == run.column("lag/min") == [0, *(i % lag + 1 for i in range(9))]


@METHODS
@CELLS
def test_the_mismatch_is_that_of_the_lab_runtime(slime_cells, lab_cells, method, lag):
    d_pi = [statistics.fmean(cell(runs, method, lag).column("mismatch/d_pi")[1:]) for runs in (slime_cells, lab_cells)]
    assert max(d_pi) / min(d_pi) < MAX_RATIO


@METHODS
@CELLS
def test_right_after_a_push_trainer_and_engine_agree(slime_cells, method, lag):
    first, *_ = cell(slime_cells, method, lag).column("mismatch/d_pi")
    assert first < 1e-5
