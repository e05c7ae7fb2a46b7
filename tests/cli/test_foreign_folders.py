"""What a folder is not to be trusted with: modules that its settings name, and to be deleted when it is not ours."""

import json
import sys

import pytest
import yaml
from command_line import LAPTOP, TINY, sat_slime_command
from synthetic import write_run

from sat_slime.runs.folder import RunFolder

NAMED = {"method": {"base": "hostile.base", "settings": {"band": 1}}}


@pytest.fixture
def imported(monkeypatch, tmp_path):
    """A package whose modules leave a mark when they are imported, as files beside the runs would be; returns which
    did."""
    (tmp_path / "hostile").mkdir()
    for name in ("__init__", "base"):
        (tmp_path / f"hostile/{name}.py").write_text(f"open({str(tmp_path / name)!r} + '.ran', 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sat_slime.report.run.figures", lambda *_: ())
    for name in [name for name in sys.modules if name.partition(".")[0] == "hostile"]:
        monkeypatch.delitem(sys.modules, name)
    return lambda: sorted(mark.stem for mark in tmp_path.glob("*.ran"))


@pytest.mark.parametrize("runtime", ["lab", "slime"])
def test_commands_that_read_a_folder_import_nothing_that_it_names(imported, tmp_path, runtime):
    run = write_run(tmp_path / "runs/tiny", 40, state='{"status": "finished"}')
    values = {"extends": str(TINY)} if runtime == "lab" else {"runtime": "slime", "name": "tiny"}
    if runtime == "slime":
        (run / "job.json").write_text(json.dumps({"job": "x", "address": "http://127.0.0.1:9"}))
    (run / "config.yaml").write_text(yaml.safe_dump(values | NAMED))
    assert "runs/tiny" in sat_slime_command("status").stdout
    for command in ("status", "stop", "report"):
        result = sat_slime_command(command, "runs/tiny")
        assert result.exit_code == 0, (command, result.output)
    sat_slime_command("diagnose", "runs/tiny")
    assert imported() == []


def test_a_grid_is_read_without_what_it_names(imported, tmp_path):
    (tmp_path / "grid/cells").mkdir(parents=True)
    grid = {"name": "grid", "run": "run.yaml", "methods": ["hostile.base"], "lags": [1], "seeds": [0]}
    (tmp_path / "grid/grid.yaml").write_text(yaml.safe_dump(grid))
    (tmp_path / "grid/run.yaml").write_text(yaml.safe_dump({"extends": str(TINY), **NAMED}))
    run = RunFolder.create(tmp_path / "grid/runs/hostile.base-lag1-seed0", "")
    run.ended("failed", "it broke")
    result = sat_slime_command("status", "grid")
    assert result.exit_code == 0 and "hostile.base-lag1-seed0: it broke" in result.stdout, result.output
    assert imported() == []


def test_a_launch_imports_it_and_says_so(imported, tmp_path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"extends": str(TINY), **NAMED}))
    result = sat_slime_command("launch", "run.yaml", "--dry-run")
    assert imported() == ["__init__", "base"]
    assert result.stderr.startswith("importing hostile.base, which the settings name\n")


@pytest.mark.parametrize("command", ["prepare", "rehearse"])
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_not_ours_is_never_deleted(tmp_path, monkeypatch, command, kind):
    monkeypatch.chdir(tmp_path)
    thesis, out = tmp_path / "thesis", tmp_path / "rehearsals" / "laptop"
    thesis.mkdir()
    (thesis / "model").write_text("years of work")
    out.parent.mkdir()
    if kind == "link":
        out.symlink_to(thesis)
    else:
        (thesis if kind == "folder" else thesis / "model").rename(out)
    words = ("rehearse", LAPTOP) if command == "rehearse" else ("prepare", "laptop", "--out", out)
    result = sat_slime_command(*words, "--overwrite")
    told = "--set name=NAME makes another" if command == "rehearse" else "--out names another"
    assert result.exit_code == 2 and told in result.stderr, result.output
    assert (out if kind == "file" else out / "model").read_text() == "years of work"


def test_a_rehearsal_never_stands_in_the_place_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "rehearsals" / "laptop"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("name: laptop")
    result = sat_slime_command("rehearse", LAPTOP, "--set", f"output_dir={run.parent}", "--overwrite")
    assert result.exit_code == 2 and "--set output_dir=runs" in result.stderr, result.output
    assert (run / "config.yaml").read_text() == "name: laptop"
