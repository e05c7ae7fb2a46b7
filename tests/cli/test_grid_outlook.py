"""How long the rest of a grid takes, and what its folders tell."""

import json
from io import StringIO

import pytest
from rich.console import Console

from sat_slime.cli.grid_run import GridPlan, GridRun, by_clock, minutes_left
from sat_slime.config import GridConfig, LabConfig
from sat_slime.runs.grid import Cell, GridFolder
from sat_slime.runs.reading import last_row

CELLS = [Cell("gspo", lag, 0) for lag in (0, 1, 2, 3)]


def plan_of(folder, *minutes, parallel=1):
    """Four cells, and finished ones that took so many minutes."""
    run = LabConfig()
    plan = GridPlan(GridConfig(parallel=parallel), GridFolder(folder), run, dict.fromkeys(CELLS, run), CELLS)
    for seed, took in enumerate(minutes):
        cell = Cell("a", 1, seed)
        plan.configs[cell] = run
        times = {"last_started": "2026-01-01T00:00:00+00:00", "ended": f"2026-01-01T00:{took:02}:00+00:00"}
        write_state(plan, cell, {"status": "finished", **times})
    return plan


def write_state(plan, cell, values):
    path = plan.folder.run_folder(cell).path
    path.mkdir(parents=True, exist_ok=True)
    (path / "state.json").write_text(json.dumps(values) + "\n")


@pytest.mark.parametrize(
    ("finished", "parallel", "going_on", "minutes"),
    [
        ((3, 5, 4), 1, (), 16),
        ((9,), 3, (), 18),
        ((9,), 9, (), 9),
        ((), 1, (), 0),
        ((10,), 2, (0.5, 0.8), 15),  # of a cell that runs the rest is counted
    ],
)
def test_time_left_is_by_finished_cells_and_counts_those_side_by_side(tmp_path, finished, parallel, going_on, minutes):
    plan = plan_of(tmp_path, *finished, parallel=parallel)
    for cell, part in zip(CELLS, going_on, strict=False):
        write_state(plan, cell, {"status": "running"})
        row = {"step": part * plan.run.pipeline.iterations}
        plan.folder.run_folder(cell).metrics.write_text(json.dumps(row) + "\n")
    assert by_clock(plan, minutes_left(plan, CELLS)) == pytest.approx(minutes)


def test_progress_is_read_past_a_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_row(path) == {}
    rows = [{"step": step, "more": "x" * 9000} for step in range(1, 9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 9, "rew')
    assert last_row(path) == rows[-1]


def test_a_cells_state_is_one_that_is_known_and_its_error_the_newest_starts(tmp_path):
    plan, cell = plan_of(tmp_path), CELLS[0]
    write_state(plan, cell, {"status": "weird"})
    assert plan.folder.state(cell) == "interrupted"
    plan.folder.output(cell).parent.mkdir(parents=True, exist_ok=True)
    plan.folder.output(cell).write_text("--- a\nerror: old\nhalf a line\n--- b\nall good\n")
    assert plan.folder.error(cell) is None


def test_a_run_that_is_finished_is_so_however_its_process_ended(tmp_path):
    going = GridRun(plan_of(tmp_path, 3), Console(file=StringIO()))
    going._end(Cell("a", 1, 0), -9)  # for want of memory, as it drew its report
    assert not going.starts and not going.failed
