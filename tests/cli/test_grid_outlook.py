"""How far the cells of a grid are, and how long the rest takes."""

import json
import math

import pytest

from sat_slime.cli.grid_run import GridPlan, by_clock, last_row, minutes_left, minutes_of
from sat_slime.config import GridConfig, LabConfig
from sat_slime.runs.grid import Cell, GridFolder

CELLS = [Cell("gspo", lag, 0) for lag in (0, 1, 2, 3)]


def plan_of(tmp_path, *more, parallel=1):
    """Cells of 100 iterations, and more cells."""
    grid = GridConfig(parallel=parallel)
    run = LabConfig.model_validate({"pipeline": {"iterations": 100}})
    cells = [Cell(cell.method, cell.lag, cell.seed) for cell in CELLS]
    return GridPlan(grid, GridFolder(tmp_path), run, dict.fromkeys([*cells, *more], run), cells)


def finished(lag, minutes, method="a"):
    return Cell(method, lag, 0, state="finished", minutes=minutes)


@pytest.mark.parametrize(
    ("others", "minutes"),
    [
        ([finished(3, 3), finished(3, 5, "b"), finished(3, 4, "c"), finished(1, 9)], 4),
        ([finished(1, 9)], 9),
        ([], math.nan),
    ],
)
def test_expectations_are_measured_where_they_can_be(tmp_path, others, minutes):
    plan = plan_of(tmp_path, *others)
    assert minutes_of(plan, CELLS[3]) == pytest.approx(minutes, nan_ok=True)
    assert math.isnan(by_clock(plan, minutes_left(plan))) == (not others)


def test_time_left_counts_what_is_done_and_what_runs_side_by_side(tmp_path):
    ten = finished(4, 10)
    plan = plan_of(tmp_path, ten)
    run = plan.folder.run_folder(CELLS[0])
    run.path.mkdir(parents=True)
    run.metrics.write_text('{"step": 75, "iteration": 75}\n')
    left = minutes_left(plan)
    assert (by_clock(plan, left), left[CELLS[0]]) == (32.5, 2.5)
    assert [by_clock(plan_of(tmp_path, ten, parallel=n), left) for n in (2, 9)] == [16.25, 10]
    plan.cells[1].state, plan.cells[2].state = "finished", "failed"
    assert set(minutes_left(plan)) == {CELLS[0], CELLS[3]}


def test_progress_is_read_past_a_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_row(path) == {}
    rows = [{"step": step, "reward/mean": 0.6, "more": "x" * 9000} for step in range(1, 9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 9, "rew')
    assert last_row(path) == rows[-1]
