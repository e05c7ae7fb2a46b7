import csv
from itertools import pairwise

import numpy as np
import pytest
import torch
from synthetic import histogram_row, step_metrics, write_run

from sat_slime.config.jsonl import read_rows
from sat_slime.objective import mismatch_histogram
from sat_slime.report.figure_files import save, spec_of
from sat_slime.report.run import (
    draw_histogram,
    draw_learning,
    draw_metrics,
    draw_overview,
    draw_trust_region,
    figures,
)
from sat_slime.runs.reading import RunData
from sat_slime.runs.rows import columns, read_metrics

NAMES = [figure.name for figure in figures(RunData())]


def draw(name, data):
    (figure,) = (figure for figure in figures(data) if figure.name == name)
    return figure.draw()


def run_data(tmp_path, steps, lag=8):
    folder = write_run(tmp_path / "run", steps, lag)
    rows = read_rows(folder / "histograms.jsonl")
    metrics = read_metrics(folder / "metrics.jsonl")
    metrics["icepop/masked"] = metrics["clip/fraction"] / 2  # of a stabilizer: figure method
    return RunData(metrics, read_metrics(folder / "eval.jsonl"), rows, max(lag, 1))


@pytest.mark.parametrize("name", NAMES)
def test_no_data_no_figure(name):
    assert draw(name, RunData()) is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [1, 2, 40])
def test_drawn_from_few_and_many_steps(name, steps, tmp_path):
    drawing = draw(name, run_data(tmp_path, steps))
    assert drawing.table
    spec = spec_of(drawing)
    assert any("layer" in part for part in spec["vconcat"])
    assert all(rows for rows in spec["datasets"].values())


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
    drawing = draw_metrics(data, "mismatch")
    svg = save(spec_of(drawing), drawing.table, tmp_path / "figures", "mismatch")
    assert svg.startswith(b"<svg")
    assert (tmp_path / "figures" / "mismatch.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "figures" / "mismatch.csv").open()))
    assert [float(row["step"]) for row in rows] == list(range(1, 13))
    np.testing.assert_allclose([float(row["mismatch/d_pi"]) for row in rows], data.metrics["mismatch/d_pi"])
    assert rows[0]["mismatch/policy"] == "" and rows[3]["mismatch/policy"] != ""


@pytest.mark.parametrize(
    ("draw_it", "name", "metric"),
    [(draw_learning, "reward", "reward/mean"), (draw_overview, "overview", "mismatch/d_pi")],
)
def test_the_files_of_reward_and_overview_have_each_evaluation_beside_its_step(draw_it, name, metric, tmp_path):
    data = run_data(tmp_path, 40)
    drawing = draw_it(data)
    save(spec_of(drawing), drawing.table, tmp_path / "figures", name)
    rows = list(csv.DictReader((tmp_path / "figures" / f"{name}.csv").open()))
    assert [float(row["step"]) for row in rows] == list(range(0, 41)) and "eval/step" not in rows[0]
    scores = dict(zip(data.evals["step"], data.evals["accuracy"], strict=True))
    by_step = dict(zip(data.metrics["step"], data.metrics[metric], strict=True))
    assert scores.keys() == {0, 16, 32}
    for row in rows:
        for column, known in (("eval/accuracy", scores), (metric, by_step)):
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
    spec = spec_of(draw_overview(RunData(columns([step_metrics(1), step_metrics(2)]), evals)))
    assert "accuracy, bars: 95 % interval" in [part.get("title") for part in spec["vconcat"]]
    rows = [row for rows in spec["datasets"].values() for row in rows]
    assert [(row["low"], row["high"]) for row in rows if row.get("low")] == [(0.4, 0.7)] * 2
    assert [(row["x"], row["y"]) for row in rows if row["line"] == "pass@8" and "y" in row] == [(0, 0.8), (16, 0.8)]


def test_the_accuracy_is_drawn_once_and_over_d_pi(tmp_path):
    data = run_data(tmp_path, 40)
    titles = {
        name: [str(part.get("title")) for part in spec_of(drawing)["vconcat"]]
        for name in NAMES
        if (drawing := draw(name, data)) is not None
    }
    of_accuracy = [name for name, those in titles.items() for title in those if title.startswith("accuracy")]
    assert of_accuracy == ["overview"] and any(title.startswith("d_pi") for title in titles["overview"])


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


def drawn_rows(drawing, line):
    """The rows of a line that have a y."""
    datasets = spec_of(drawing)["datasets"].values()
    return [row for rows in datasets for row in rows if row.get("line") == line and "y" in row]


def test_the_lag_is_drawn_step_by_step(tmp_path):
    data = run_data(tmp_path, 40)
    drawing = draw("lag", data)
    rows = drawn_rows(drawing, "mean")
    assert [row["y"] for row in rows] == data.metrics["lag/mean"].tolist() == drawing.table["lag/mean"].tolist()
    assert sum(a["y"] > b["y"] for a, b in pairwise(rows)) == 4  # it falls from 8 to 1 in each cycle


def test_the_teeth_of_a_long_run_are_shown_apart(tmp_path):
    spec = spec_of(draw("lag", run_data(tmp_path, 80, lag=2)))
    panels = [part["title"] for part in spec["vconcat"] if "title" in part]
    assert panels == ["of the trained responses", "the last 10 cycles"]


def test_base_radii_are_lines_of_the_radii_panel(tmp_path):
    data = run_data(tmp_path, 12)
    for clip, names in (
        ({"eps_low": 0.2, "eps_high": 0.2}, ["base radius 0.2"]),
        ({"eps_low": 0.2, "eps_high": 0.28}, ["upper base radius 0.28", "lower base radius 0.2"]),
        ({"eps_low": "much"}, []),
    ):
        drawing = draw_trust_region(data, {"method": {"clip": clip}})
        rows = [row for rows in spec_of(drawing)["datasets"].values() for row in rows]
        assert sorted({row["line"] for row in rows if "base" in row["line"]}) == sorted(names)
    clip = {"eps_low": 0.1, "eps_high": 0.1}
    rows = drawn_rows(draw_trust_region(data, {"method": {"clip": clip}}), "base radius 0.1")
    assert [(row["x"], row["y"]) for row in rows] == [(1, 0.1), (12, 0.1)]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_figure_draws_is_what_its_table_holds(name, tmp_path):
    """Every value that a pointer is told of a single step is in the file of numbers, but for rounding."""
    drawing = draw(name, run_data(tmp_path, 40))
    rows = [row for rows in spec_of(drawing)["datasets"].values() for row in rows]
    told = {row["own"] for row in rows if row.get("own") is not None and "base" not in row["line"]}
    known = np.concatenate([values for values in drawing.table.values()])
    known = np.concatenate([known, 100 * known])  # shares are drawn in percent
    assert all(np.isclose(known, value, rtol=1e-4).any() for value in told)


def test_no_two_lines_of_a_panel_are_drawn_alike(tmp_path):
    for name in NAMES:
        spec = spec_of(draw(name, run_data(tmp_path / name, 40)))
        for part in spec["vconcat"]:
            if "stroke" in part.get("encoding", {}):
                looks = [part["encoding"][channel]["scale"]["range"] for channel in ("shape", "stroke", "fill")]
                assert len(set(zip(*looks, strict=True))) == len(looks[0])
