import re
import shutil
from pathlib import Path

import pytest
from command_line import TINY, sat_slime_command
from synthetic import write_run

from sat_slime.runs.folder import RunFolder, RunFolderError

TRACKERS = Path(__file__).parents[1] / "runs" / "recorded"


def test_report_of_a_run_and_of_nothing(runtime, tmp_path):
    sat_slime_command("launch", TINY)
    (tmp_path / "runs/tiny/report.html").unlink()
    assert sat_slime_command("report", "runs/tiny").stdout.strip() == "runs/tiny/report.html"
    assert (tmp_path / "runs/tiny/report.html").exists()
    assert sat_slime_command("report", tmp_path).exit_code == 2


def test_report_tells_on_the_terminal_what_is_wrong_with_the_rows(runtime, tmp_path):
    sat_slime_command("launch", TINY, "--set", "eval.every_n_iterations=0")
    assert sat_slime_command("report", "runs/tiny").stderr == ""
    metrics = tmp_path / "runs/tiny/metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join([*lines[:2], "torn\n", *lines[3:]]))
    told = sat_slime_command("report", "runs/tiny")
    assert told.exit_code == 0 and told.stderr.startswith("warning: runs/tiny: metrics.jsonl is damaged: of line 3")


def test_a_log_of_slime_is_read_in_one_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = sat_slime_command("diagnose", TRACKERS / "job.log")
    assert result.exit_code == 0
    for text in ("Read: 3 optimizer steps of a tracker", "Not visible here", "page: diagnosis/report.html"):
        assert text in result.output
    page = tmp_path / "diagnosis" / "report.html"
    refused = sat_slime_command("diagnose", TRACKERS / "job.log", "--out", page / "x")
    assert refused.exit_code == 2 and refused.stderr.rstrip().endswith("x: Not a directory")


def test_rows_alone_as_of_the_plugins_run_dir_are_a_run_without_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = write_run(tmp_path / "rows", 40)
    (rows / "config.yaml").unlink()
    for words, path in (
        (("report", "rows"), "rows/report.html"),
        (("report", "rows", "--out", "a/b"), "a/b/report.html"),
    ):
        assert sat_slime_command(*words).stdout.strip() == path
        for part in ("without its settings", "batches were 1 to 8", 'id="trust_region"'):
            assert part in Path(path).read_text()
    told = sat_slime_command("diagnose", "rows").output
    assert "nothing unhealthy in reward/mean" in told and "staleness or a difference" not in told
    assert "40/?" in sat_slime_command("status", "rows").stdout
    for words in (("launch", "rows", "--resume"), ("stop", "rows"), ("report", "rows", "--out", ".")):
        told = sat_slime_command(*words)
        assert told.exit_code == 2 and re.search("is not a run folder|is no report", told.stderr)
    with pytest.raises(RunFolderError, match="choose another name"):
        RunFolder(rows).check_new(overwrite=True)


def test_rows_of_another_program_are_no_run_and_their_folder_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "a", 40)
    shutil.copytree(TRACKERS / "events", tmp_path / "events")
    for folder in ("runs", "events"):
        (tmp_path / folder / "metrics.jsonl").write_text('{"step": 1, "val_acc": 0.5}\n')
    assert "40/" in sat_slime_command("status", "runs").stdout, "the runs beside it"
    assert "of a tracker" in sat_slime_command("diagnose", "events").output
    rows = write_run(tmp_path / "rows", 40)
    (rows / "config.yaml").unlink()
    (rows / "report.html").write_text("another's")
    told = sat_slime_command("report", "rows")
    assert told.exit_code == 2 and "is no page of sat-slime" in told.stderr
    assert (rows / "report.html").read_text() == "another's"
    told = sat_slime_command("diagnose", "rows", "events")
    assert told.exit_code == 2 and "rows by our names: give it alone" in told.stderr


@pytest.mark.parametrize(
    "damage", ["pipeline: {lag: fast}", "method: {sat: {alpha: null}}", "slime: {rollout-batch-size: x}"]
)
def test_a_check_up_of_rows_beside_damaged_settings(tmp_path, damage, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = write_run(tmp_path / "rows", 40)
    (rows / "config.yaml").write_text(damage)
    assert "Read: 40 optimizer steps" in sat_slime_command("diagnose", "rows/metrics.jsonl").output
