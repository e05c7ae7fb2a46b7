"""metrics.jsonl and eval.jsonl of a run of slime, with torn lines, resumed runs, lost lines and slime's numbers."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest
from slime_host import import_slime

from sat_slime.config.jsonl import append_row, read_rows
from sat_slime.plugin.inside import step_files
from sat_slime.plugin.inside.step_files import MetricsFile, StepFile, record_metrics


def test_a_row_is_a_line_of_its_own_even_after_a_torn_one(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_row(path, {"step": 1, "x": float("nan")})
    with open(path, "a") as file:
        file.write('{"step": 2, "x"')
    append_row(path, {"step": 3})
    append_row(path, {"step": 4})
    assert path.read_text().splitlines() == ['{"step": 1, "x": null}', '{"step": 2, "x"', '{"step": 3}', '{"step": 4}']
    assert [row["step"] for row in read_rows(path)] == [1, 3, 4]


def test_a_resumed_run_replaces_what_followed_its_checkpoint(tmp_path):
    path = tmp_path / "run" / "rows.jsonl"
    first = StepFile(path)
    first.append([{"step": step, "run": 1} for step in range(1, 6)])
    resumed = StepFile(path)
    resumed.append([{"step": 4, "run": 2}])
    resumed.append([{"step": 5, "run": 2}])
    assert [(row["step"], row["run"]) for row in read_rows(path)] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]


def test_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog):
    (tmp_path / "run").write_text("in the way")
    StepFile(tmp_path / "run" / "rows.jsonl").append([{"step": 1}])
    assert "1 lines are lost" in caplog.text


def test_steps_of_a_rollout_get_its_times_and_our_names(tmp_path):
    file = MetricsFile(tmp_path)
    for step in (8, 9):
        log = {"train/loss": 0.5, "train/pg_loss": 0.25, "train/kl_loss": 2.0, "train/entropy_loss": 1.0}
        log |= {"train/grad_norm": 3.0, "train/sat/q": 0.1, "train/lag/mean": 8.0, "train/step": step}
        file.see(log, "train/step")
    file.see({"rollout/rewards": 1.0, "rollout/step": 4}, "rollout/step")
    assert read_rows(tmp_path / "metrics.jsonl") == [], "not yet"
    times = {"perf/train_time": 40.0, "perf/train_wait_time": 10.0, "perf/step_time": 50.0, "rollout/step": 4}
    file.see(times, "rollout/step")
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [9, 10]
    assert rows[0] == {
        "step": 9,
        "loss/total": 0.5,
        "loss/policy": 0.25,
        "loss/kl": 2.0,
        "loss/entropy": 1.0,
        "grad_norm": 3.0,
        "sat/q": 0.1,
        "lag/mean": 8.0,
        "time/train": 40.0,
        "time/wait": 10.0,
        "time/step": 50.0,
        "run/restarts": 0,
    }
    file.see(times, "rollout/step")
    assert len(read_rows(tmp_path / "metrics.jsonl")) == 2


@pytest.mark.needs_slime
def test_what_slime_logs_is_recorded_and_still_logged(tmp_path, monkeypatch):
    import slime

    import_slime("slime.utils.misc")
    try:
        (tracking,) = import_slime("slime.observability.logging_utils")
    except ModuleNotFoundError:  # v0.3.1
        (tracking,) = import_slime("slime.utils.logging_utils")
    assert slime.__path__
    monkeypatch.setattr(step_files, "locate", lambda name: (tracking, name))
    seen = []
    monkeypatch.setattr(tracking, "log", lambda args, metrics, step_key: seen.append(step_key))
    record_metrics(str(tmp_path))
    record_metrics(str(tmp_path))
    tracking.log(Namespace(), {"train/loss": 1.0, "train/step": 0}, step_key="train/step")
    tracking.log(Namespace(), {"perf/train_time": 1.0, "rollout/step": 0}, step_key="rollout/step")
    assert seen == ["train/step", "rollout/step"]
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert row == {"step": 1, "loss/total": 1.0, "time/train": 1.0, "run/restarts": 0}
