"""How far the cells of a grid are, and how long the rest takes."""

import math

import pytest

from sat_slime.cli.grid_plan import GridPlan, last_row, outlook
from sat_slime.config import GridConfig, LabConfig
from sat_slime.grid.plan import Cell
from sat_slime.grid.state import CellState, GridFolder

CELLS = [Cell("gspo", lag, 0) for lag in (0, 1, 2, 3)]


def plan_of(tmp_path, start_s=0.0, seconds=6.0, parallel=1):
    """Cells of 100 iterations, which take ten minutes by what the grid's file says."""
    cost = {"start_s": start_s, "seconds_per_iteration": seconds}
    grid = GridConfig.model_validate({"parallel": parallel, "cost": cost})
    run = LabConfig.model_validate({"pipeline": {"iterations": 100}})
    return GridPlan(grid, GridFolder(tmp_path), run, dict.fromkeys(CELLS, run), CELLS, ())


def finished(lag, minutes, method="a"):
    return CellState(Cell(method, lag, 0), "finished", 1, minutes=minutes)


@pytest.mark.parametrize(
    ("others", "minutes", "source"),
    [
        ([finished(3, 3), finished(3, 5, "b"), finished(3, 4, "c"), finished(1, 9)], 4, "cells of the same lag"),
        ([finished(1, 9)], 9, "finished cells, median"),
        ([], 11, "the grid file's 6 s"),
    ],
)
def test_expectations_are_measured_where_they_can_be(tmp_path, others, minutes, source):
    ahead = outlook(plan_of(tmp_path, start_s=60), [CellState(CELLS[3]), *others])
    assert ahead.left == {CELLS[3]: minutes} and source in ahead.source
    unknown = outlook(plan_of(tmp_path, seconds=None), [CellState(CELLS[3])])
    assert math.isnan(unknown.minutes_left) and "cost.seconds_per_iteration is not set" in unknown.source


def test_time_left_counts_what_is_done_and_what_runs_side_by_side(tmp_path):
    plan, states = plan_of(tmp_path), [CellState(cell) for cell in CELLS]
    states[0].state = "running"
    run = plan.folder.run_folder(CELLS[0])
    run.path.mkdir(parents=True)
    run.metrics.write_text('{"step": 75, "iteration": 75}\n')
    ahead = outlook(plan, states)
    assert (ahead.minutes_left, ahead.left[CELLS[0]]) == (32.5, 2.5)
    assert [outlook(plan_of(tmp_path, parallel=n), states).minutes_left for n in (2, 9)] == [16.25, 10]
    states[1].state, states[2].state = "finished", "failed"
    assert set(outlook(plan, states).left) == {CELLS[0], CELLS[3]}


def test_progress_is_read_past_a_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_row(path) == {}
    path.write_text('{"step": 1}\n{"step": 2, "reward/mean": 0.6}\n{"step": 3, "rew')
    assert last_row(path) == {"step": 2, "reward/mean": 0.6}
    path.write_text('{"step": 1}\n')
    assert last_row(path) == {"step": 1}
