import json
import shutil
import signal

from command_line import TINY, sat_slime_command
from synthetic import write_cell, write_grid

from sat_slime.cli import lab_run


def test_status_tells_how_a_run_is(runtime, tmp_path):
    runtime.end, runtime.stop_after = RuntimeError("engine 0 died"), 3
    sat_slime_command("launch", TINY)
    shown = sat_slime_command("status", "runs/tiny").stdout
    assert "state       failed\n" in shown and "error       engine 0 died\n" in shown
    assert "progress    step 3 of 6, reward 0.3\n" in shown and "checkpoint  iteration-000002\n" in shown
    assert shown.endswith("go on with  sat-slime launch runs/tiny --resume\n")
    (tmp_path / "runs/tiny/state.json").write_text('{"status": "running", "pid": 4711}')
    shown = sat_slime_command("status", "runs/tiny").stdout
    assert "state       killed\n" in shown and "error       its process 4711 was killed, by hand or for want" in shown
    for path in (tmp_path / "runs/tiny").iterdir():  # as if it was killed before it started
        if path.is_file() and path.name not in ("config.yaml", ".lock"):
            path.unlink()
    shown = sat_slime_command("status", "runs/tiny").stdout
    assert "state       not started\nstarted     never\n" in shown and "None" not in shown


def test_a_view_that_is_killed_ends_as_by_ctrl_c(runtime, tmp_path, monkeypatch):
    sat_slime_command("launch", TINY)
    monkeypatch.setattr(lab_run, "log_of", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert sat_slime_command("status", "runs/tiny", "--follow").exit_code == 130


def test_status_without_a_run_lists_all_of_them_newest_first(runtime, tmp_path):
    assert "no run and no grid is here" in sat_slime_command("status").stdout
    sat_slime_command("launch", TINY, "--name", "old")
    state = tmp_path / "runs/old/state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "last_started": "2020-01-01T00:00:00+00:00"}))
    sat_slime_command("launch", TINY, "--name", "new")
    lines = sat_slime_command("status").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["runs/new", "finished"], ["runs/old", "finished"]]
    assert "2020-01-01 00:00" in lines[2] and "started (UTC)" in lines[0], "the log beside it has local time"


def test_the_file_of_init_grid_is_no_grid_yet(runtime, tmp_path):
    sat_slime_command("init", "grid")
    sat_slime_command("launch", TINY)
    assert "runs/tiny" in sat_slime_command("status").stdout
    assert "folder      grids/" in sat_slime_command("grid", ".", "--dry-run").stdout


def test_the_runs_of_a_grid_are_listed_in_it_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_grid(tmp_path / "grids/small", ("gspo", "sat-gspo"), (0,), lags=(8,))
    shutil.rmtree(tmp_path / "grids/small/runs/gspo-lag8-seed0")  # as if it had not started
    (tmp_path / "grids/small/cells").mkdir()
    write_cell(tmp_path / "runs/old/one", "sat-gspo-r3", 8, 3, steps=50, state="interrupted")
    write_grid(tmp_path / "kept/result", ("gspo",), ())  # of which the runs are elsewhere
    lines = {line.split()[0]: line for line in sat_slime_command("status").stdout.splitlines()[1:]}
    assert set(lines) == {"grids/small", "runs/old/one"}
    assert "not running  1 of 2 runs" in lines["grids/small"] and "50/200" in lines["runs/old/one"]
    assert sat_slime_command("status", "grids/small").stdout.endswith("\n"), "what is printed next has its own line"
    (tmp_path / "grids/small/grid.yaml").write_text("lags:\n")  # damaged
    assert "1 of 1 runs" in sat_slime_command("status").stdout
