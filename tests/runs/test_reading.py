"""A run folder read for a report, whatever is there of it."""

import json

import pytest
from synthetic import write_run

from sat_slime.runs.reading import load_run, read_yaml


def test_a_run_is_read_with_its_lag_cycle_and_its_plan(tmp_path):
    run = load_run(write_run(tmp_path / "run", 40, lag=4, state='{"status": "finished"}'))
    assert (run.name, run.steps, run.planned_steps, run.data.period) == ("synthetic", 40, 200, 4)
    assert run.state["status"] == "finished" and len(run.data.histograms) == 40 and run.data.not_finite == {}
    assert run.data.evals["step"].tolist() == [0, 16, 32]


def test_of_several_data_sets_the_first_is_read(tmp_path):
    folder = write_run(tmp_path / "run", 3)
    rows = [
        {"step": step, "dataset": name, "accuracy": accuracy}
        for step in (0, 2)
        for name, accuracy in (("aime", 0.9), ("math", 0.1))
    ]
    (folder / "eval.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    evals = load_run(folder).data.evals
    assert (evals["step"].tolist(), evals["accuracy"].tolist()) == ([0, 2], [0.9, 0.9])


def test_a_run_of_unreadable_settings_has_the_name_of_its_folder(tmp_path):
    folder = write_run(tmp_path / "run", 3)
    (folder / "config.yaml").write_bytes(b"{\xff")
    run = load_run(folder)
    assert (run.name, run.config, run.steps, run.planned_steps, run.data.period) == ("run", {}, 3, 0, 1)


@pytest.mark.parametrize("content", [b"{torn", b"\xff\xfe\xfa", b"- a list", b""])
def test_a_file_without_a_mapping_has_no_values(tmp_path, content):
    (tmp_path / "x.yaml").write_bytes(content)
    assert read_yaml(tmp_path / "x.yaml") == {} == read_yaml(tmp_path / "missing.yaml")
