"""How long the rest of a grid takes."""

import json
import math
from pathlib import Path

import pytest

from sat_slime.cli.grid_run import GridPlan, by_clock, minutes_left
from sat_slime.config import GridConfig, LabConfig
from sat_slime.runs.grid import Cell, GridFolder
from sat_slime.runs.reading import last_row

CELLS = [Cell("gspo", lag, 0) for lag in (0, 1, 2, 3)]


def plan_of(folder, *finished, parallel=1):
    """Cells of 100 iterations, and finished ones: (method, lag, minutes)."""
    run = LabConfig.model_validate({"pipeline": {"iterations": 100}})
    plan = GridPlan(GridConfig(parallel=parallel), GridFolder(folder), run, dict.fromkeys(CELLS, run), CELLS)
    for method, lag, minutes in finished:
        cell = Cell(method, lag, 0)
        plan.configs[cell] = run
        times = {"last_started": "2026-01-01T00:00:00+00:00", "ended": f"2026-01-01T00:{minutes:02}:00+00:00"}
        write(plan, cell, "state.json", {"status": "finished", **times})
    return plan


def write(plan, cell, name, values):
    path = plan.folder.run_folder(cell).path
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_text(json.dumps(values) + "\n")


@pytest.mark.parametrize(
    ("finished", "minutes"),
    [([("a", 3, 3), ("b", 3, 5), ("c", 3, 4), ("a", 1, 9)], 4), ([("a", 1, 9)], 9), ([], math.nan)],
)
def test_expectations_are_measured_where_they_can_be(tmp_path, finished, minutes):
    plan = plan_of(tmp_path, *finished)
    assert minutes_left(plan, CELLS)[CELLS[3]] == pytest.approx(minutes, nan_ok=True)
    assert math.isnan(by_clock(plan, minutes_left(plan, CELLS))) == (not finished)


def test_time_left_counts_what_is_done_and_what_runs_side_by_side(tmp_path):
    plan = plan_of(tmp_path, ten := ("a", 4, 10))
    write(plan, CELLS[0], "metrics.jsonl", {"step": 75, "iteration": 75})
    left = minutes_left(plan, CELLS)
    assert (by_clock(plan, left), left[CELLS[0]]) == (32.5, 2.5)
    assert [by_clock(plan_of(tmp_path, ten, parallel=n), left) for n in (2, 9)] == [16.25, 10]


def test_progress_is_read_past_a_torn_line(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    assert last_row(path) == {}
    rows = [{"step": step, "reward/mean": 0.6, "more": "x" * 9000} for step in range(1, 9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 9, "rew')
    assert last_row(path) == rows[-1]


def test_a_cells_state_is_one_that_is_known_and_its_error_the_newest_starts(tmp_path):
    plan, cell = plan_of(tmp_path), CELLS[0]
    write(plan, cell, "state.json", {"status": "weird"})
    assert plan.folder.state(cell) == "interrupted"
    plan.folder.output(cell).parent.mkdir(parents=True, exist_ok=True)
    plan.folder.output(cell).write_text("--- a\nerror: old\nhalf a line\n--- b\nall good\n")
    assert plan.folder.error(cell) is None
