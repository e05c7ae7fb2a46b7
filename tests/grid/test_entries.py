"""The list of runs and grids below a folder."""

import os

import pytest
from made_up_study import write_grid
from synthetic import write_cell

from sat_slime.grid.entries import entries
from sat_slime.runs.folder import RunFolder


def test_every_run_and_grid_is_listed_once(tmp_path):
    write_grid(tmp_path / "grids", "small", ("gspo", "sat-gspo"), (8,), seeds=(0,), planned=(0, 1))
    write_cell(tmp_path / "runs/one", "sat-gspo-r3", 8, 3, steps=50, state="interrupted")
    (tmp_path / "runs/one/report.html").write_text("<p>a report</p>")
    write_cell(tmp_path / "runs/old/two", "gspo", 1, 0, state="finished")
    write_grid(tmp_path / "kept", "result", ("gspo",), (8,), seeds=())  # of which the runs are elsewhere
    found = {entry.path: entry for entry in entries(tmp_path)}
    assert set(found) == {"grids/small", "runs/one", "runs/old/two"}
    grid, one = found["grids/small"], found["runs/one"]
    assert (grid.kind, grid.status, len(grid.runs)) == ("grid", "not running", 2)
    assert (one.method, one.lag, one.seed, one.step, one.steps) == ("SAT-GSPO w/ R3", 8, 3, 50, 200)
    assert one.report and not found["runs/old/two"].report and one.reward is not None and one.accuracy is not None


def test_the_report_of_before_a_resume_is_not_named(tmp_path):
    run = RunFolder(write_cell(tmp_path / "one", "sat-gspo", 8, 0, steps=20, state="interrupted"))
    run.report.write_text("<p>of before</p>")
    assert entries(tmp_path)[0].report
    os.utime(run.report, (0, 0))
    assert not entries(tmp_path)[0].report


@pytest.mark.parametrize(
    ("file", "text"),
    [("metrics.jsonl", '{"step": 5, "mismatch/d_pi": NaN}\n'), ("config.yaml", "a: [1\n"), ("state.json", "[1")],
)
def test_a_damaged_run_does_not_hide_the_others(tmp_path, file, text):
    for name in ("one", "two"):
        write_cell(tmp_path / name, "gspo", 1, 0, steps=5)
    (tmp_path / "one" / file).write_text(text)
    listed = {entry.path: entry for entry in entries(tmp_path)}
    assert set(listed) == {"one", "two"} and listed["two"].d_pi is not None
    assert (listed["one"].d_pi is None) == (file == "metrics.jsonl")
