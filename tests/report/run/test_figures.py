import csv

import numpy as np
import pytest
import torch
from synthetic import histogram_row, step_metrics, write_run

from sat_slime.objective import mismatch_histogram
from sat_slime.report.drawing import save
from sat_slime.report.run.figures import draw_histogram, draw_learning, draw_mismatch, figures
from sat_slime.runs.reading import RunData
from sat_slime.runs.rows import columns, read_metrics, read_rows

NAMES = [figure.name for figure in figures(RunData())]


def draw(name, data):
    (figure,) = (figure for figure in figures(data) if figure.name == name)
    return figure.draw()


def run_data(tmp_path, steps, lag=8):
    folder = write_run(tmp_path / "run", steps, lag)
    rows = read_rows(folder / "histograms.jsonl")
    return RunData(read_metrics(folder / "metrics.jsonl"), read_metrics(folder / "eval.jsonl"), rows, max(lag, 1))


@pytest.mark.parametrize("name", NAMES)
def test_no_data_no_figure(name):
    assert draw(name, RunData()) is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [1, 2, 40])
def test_drawn_from_few_and_many_steps(name, steps, tmp_path):
    drawing = draw(name, run_data(tmp_path, steps))
    assert drawing.figure.axes
    assert drawing.table


@pytest.mark.parametrize("name", NAMES)
def test_missing_values_do_not_matter(name):
    rows = [step_metrics(step) for step in range(1, 20)]
    for row in rows[::2]:
        for key in list(row)[1::2]:
            row[key] = None
    histograms = [{"step": 1}, {**histogram_row(2), "q": None}]
    draw(name, RunData(columns(rows), {"accuracy": np.array([np.nan, 0.5])}, histograms, 8))


def test_saved_figure_has_its_numbers_beside_it(tmp_path):
    data = run_data(tmp_path, 12)
    svg = save(draw_mismatch(data), tmp_path / "figures", "mismatch")
    assert svg.lstrip().startswith(b"<?xml")
    assert (tmp_path / "figures" / "mismatch.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "figures" / "mismatch.csv").open()))
    assert [float(row["step"]) for row in rows] == list(range(1, 13))
    np.testing.assert_allclose([float(row["mismatch/d_pi"]) for row in rows], data.metrics["mismatch/d_pi"])
    assert rows[0]["mismatch/policy"] == "" and rows[3]["mismatch/policy"] != ""


def test_the_rewards_file_has_each_evaluation_beside_its_step(tmp_path):
    data = run_data(tmp_path, 40)
    save(draw_learning(data), tmp_path / "figures", "reward")
    rows = list(csv.DictReader((tmp_path / "figures" / "reward.csv").open()))
    assert [float(row["step"]) for row in rows] == list(range(0, 41)) and "eval/step" not in rows[0]
    scores = dict(zip(data.evals["step"], data.evals["accuracy"], strict=True))
    rewards = dict(zip(data.metrics["step"], data.metrics["reward/mean"], strict=True))
    assert scores.keys() == {0, 16, 32}
    for row in rows:
        for column, known in (("eval/accuracy", scores), ("reward/mean", rewards)):
            value = known.get(float(row["step"]))
            assert row[column] == "" if value is None else float(row[column]) == pytest.approx(value)


def test_evaluations_of_several_data_sets_have_a_row_each():
    evals = columns([{"step": step, "accuracy": score} for step, score in ((0, 0.1), (0, 0.2), (2, 0.3), (2, 0.4))])
    table = draw_learning(RunData(columns([step_metrics(step) for step in (1, 2, 3)]), evals)).table
    assert table["step"].tolist() == [0, 0, 1, 2, 2, 3]
    np.testing.assert_array_equal(table["eval/accuracy"], [0.1, 0.2, np.nan, 0.3, 0.4, np.nan])
    assert np.isfinite(table["reward/mean"]).tolist() == [False, False, True, True, False, True]


def test_an_evaluation_shows_its_interval_and_pass_at_the_largest_k():
    scores = {"accuracy": 0.5, "accuracy/low_samples": 0.4, "accuracy/high_samples": 0.7, "pass@1": 0.5, "pass@8": 0.8}
    evals = columns([{"step": step, "n_samples": 64, **scores} for step in (0, 16)])
    drawing = draw_learning(RunData(columns([step_metrics(1), step_metrics(2)]), evals))
    axes = drawing.figure.axes[-1]
    assert "95 % interval" in axes.get_title(loc="left") + axes.get_title()
    assert "pass@8" in [text.get_text() for text in axes.get_legend().get_texts()]
    (bars,) = (container for container in axes.containers if container.has_yerr)
    ends = bars.lines[2][0].get_segments()
    assert [end[:, 1].tolist() for end in ends] == [[0.4, 0.7], [0.4, 0.7]]


def test_histogram_shares_sum_to_one_and_split_by_lag():
    rows = [histogram_row(step) for step in range(1, 33)]
    table = draw_histogram(RunData(histograms=rows, period=8)).table
    shares = {key: values.sum() for key, values in table.items() if key.endswith("share")}
    assert len(shares) == 4
    np.testing.assert_allclose(list(shares.values()), 1.0)


def test_histogram_takes_what_the_objective_measures():
    measured = mismatch_histogram(torch.tensor([0.0, 1e-3, 0.02, 0.5]))
    table = draw_histogram(RunData(histograms=[{"step": 1, "lag": 1, "q": None, **measured}])).table
    assert table["first quarter: share"][0] == 0.25  # exactly zero, left of every edge
    assert table["first quarter: share"].sum() == 1.0
