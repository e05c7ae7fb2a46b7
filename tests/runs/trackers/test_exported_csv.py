"""Charts of W&B, with the head of exports in public repositories: the x axis, then RUN - METRIC with __MIN, __MAX."""

import csv

import pytest

from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.trackers.exported_csv import csv_rows, is_exported_csv
from sat_slime.runs.trackers.tracked_run import read_tracked


def chart(path, axis, metric, values, runs=("my - run",)):
    """A chart as the page of W&B exports it: every cell quoted, empty where a run has no value."""
    names = [f"{run} - {name}{end}" for run in runs for name in ("_step", metric) for end in ("", "__MIN", "__MAX")]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow([axis, *names])
        for step, value in enumerate(values):
            writer.writerow([step, *([2 * step] * 3 + [value] * 3) * len(runs)])
    return path


def test_a_chart_of_one_run(tmp_path):
    path = chart(tmp_path / "kl.csv", "train/step", "train/kl_loss", [0.5, "", 0.25])
    assert is_exported_csv(path)
    assert list(csv_rows(path)) == [
        {"train/step": 0, "train/kl_loss": 0.5},
        {"train/step": 1},
        {"train/step": 2, "train/kl_loss": 0.25},
    ]


def test_charts_of_a_folder_are_one_run(tmp_path):
    chart(tmp_path / "a.csv", "train/step", "train/kl_loss", [0.5, 0.25])
    chart(tmp_path / "b.csv", "rollout/step", "rollout/raw_reward", [0.0, 1.0])
    chart(tmp_path / "c.csv", "eval/step", "eval/aime", ["", 0.75])
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    run = read_tracked([tmp_path])
    assert [(row["step"], row["loss/kl"], row["reward/mean"]) for row in run.metrics] == [(1, 0.5, 0), (2, 0.25, 1)]
    assert [(row["step"], row["accuracy"]) for row in run.evals] == [(2, 0.75)]


def test_a_history_as_pandas_writes_it(tmp_path):
    path = tmp_path / "history.csv"
    path.write_text("_step,_runtime,train/step,train/loss,rollout/step,rollout/raw_reward\n0,1,,,0,0.5\n1,2,0,0.1,,\n")
    assert list(csv_rows(path)) == [
        {"rollout/step": 0, "rollout/raw_reward": 0.5},
        {"train/step": 0, "train/loss": 0.1},
    ]


@pytest.mark.parametrize(
    ("axis", "runs", "said"),
    [
        ("Step", ("a",), "set the chart's x axis to train/step and export it again"),
        ("train/step", ("a", "b"), r"a chart of 2 runs \(a, b\): export only one run"),
    ],
)
def test_what_cannot_be_read_is_said(axis, runs, said, tmp_path):
    with pytest.raises(RunFolderError, match=said):
        list(csv_rows(chart(tmp_path / "x.csv", axis, "train/loss", [1.0], runs)))
