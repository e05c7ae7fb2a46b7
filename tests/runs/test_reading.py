"""A run folder's files, whatever is there of them: written whole, and read with what a kill or a disk left."""

import io
import json
import math

import numpy as np
import pytest
import torch
from rich.console import Console
from synthetic import write_run

from sat_slime.config.jsonl import append_line, keep_rows, read_rows, to_json, write_atomically
from sat_slime.report.comparison import limits, summary
from sat_slime.report.frames import collect, load_compared_run
from sat_slime.report.run import accuracy_chart, findings
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.log import RunLog
from sat_slime.runs.reading import load_run, newest_numbers, read_yaml, row_faults, run_data


def test_lines_are_valid_json_whatever_the_values():
    row = {
        **{"nan": math.nan, "inf": -math.inf, "numpy": np.float32(0.5), "array": np.array([1.0, math.nan])},
        **{"tensor": torch.tensor(2), "bool": True, "nested": {"x": [math.inf]}, "text": "α\n"},
    }
    line = to_json(row)
    assert "\n" not in line
    assert json.loads(line, parse_constant=lambda name: pytest.fail(name)) == {
        **{"nan": None, "inf": None, "numpy": 0.5, "array": [1.0, None]},
        **{"tensor": 2, "bool": True, "nested": {"x": [None]}, "text": "α\n"},
    }


def test_torn_and_foreign_lines_are_left_out_and_a_new_one_begins_its_own(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n[1]\n\n{"step": 2, "x": "\xff"}\n{"step": 3, "rew')
    append_line(path, '{"step": 4}')
    assert [row["step"] for row in read_rows(path)] == [1, 2, 4] and read_rows(tmp_path / "none.jsonl") == []


def test_keep_rows_drops_the_torn_line_and_leaves_no_temporary(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    keep_rows(path, lambda row: row["step"] <= 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n' and list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        write_atomically(path, "new")
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]


def test_a_run_is_read_with_its_lag_cycle_and_its_plan(tmp_path):
    run = load_run(write_run(tmp_path / "run", 40, lag=4, state='{"status": "finished"}'))
    assert (run.name, run.steps, run.planned_steps, run.data.period) == ("run", 40, 200, 4)
    assert run.state["status"] == "finished" and run.data.not_finite == {}
    assert run.data.evals["step"].tolist() == [0, 10, 20, 30, 40]
    assert run_data([], [], {"pipeline": {"lag": 0, "optimizer_steps_per_rollout": 4}}).period == 4


def test_the_newest_accuracy_is_of_the_first_data_set_as_the_reports_and_of_rows_of_any_length(tmp_path):
    run = RunFolder(write_run(tmp_path / "run", 3))
    run.eval.unlink()
    problems = {"accuracy_by_problem": [0.5125] * 5000}
    for step, name, accuracy in ((0, "aime", 0.1), (0, "math", 0.7), (8, "aime", 0.2), (8, "math", 0.8)):
        append_line(run.eval, to_json({"step": step, "dataset": name, "accuracy": accuracy} | problems))
    data = load_run(run.path).data
    assert newest_numbers(run)["accuracy"] == f"{data.evals['accuracy'][-1]:.4f}" == "0.2000"
    assert accuracy_chart(data)[0].spec()["title"] == "held-out accuracy of aime"


@pytest.mark.parametrize("content", [b"{torn", b"\xff\xfe\xfa", b"- a list", b""])
def test_a_run_of_unreadable_settings_has_the_name_of_its_folder(tmp_path, content):
    folder = write_run(tmp_path / "run", 3)
    (folder / "config.yaml").write_bytes(content)
    run = load_run(folder)
    assert (run.name, run.config, run.steps, run.planned_steps, run.data.period) == ("run", {}, 3, 0, 2)  # it saw lag 2
    assert read_yaml(tmp_path / "missing.yaml") == {}


@pytest.mark.parametrize("name", ["metrics.jsonl", "eval.jsonl"])
def test_a_damaged_line_is_told_and_its_run_does_not_count(tmp_path, name):
    whole, path = (write_run(tmp_path / name, 20, state='{"status": "finished"}') for name in ("whole", "damaged"))
    folder = RunFolder(path)
    with (path / name).open("a") as file:
        file.write('{"step": 21, "rew')  # in the midst of a line
    assert list(row_faults(folder)) == [] and load_compared_run(path).counts
    lines = (path / name).read_text().splitlines()
    (path / name).write_text("\n".join([lines[0], "garbage", *lines[2:]]))
    (told,) = row_faults(folder)
    assert told == f"{name} is damaged: of line 2 nothing can be read, and it is left out."
    assert told in list(findings(load_run(path)))
    assert load_compared_run(whole).counts and not load_compared_run(path).counts
    (said,) = [line for line in limits(collect([path])) if "Not counted" in line]
    assert told in said
    assert any("1 not whole (1 with damaged rows)" in line for line in summary(collect([path]), []))
    console = Console(file=io.StringIO(), width=300)
    RunLog(folder, "run", 9, console).rewind(6)
    assert console.file.getvalue() == f"warning: {told}\n" and told in folder.log.read_text()
