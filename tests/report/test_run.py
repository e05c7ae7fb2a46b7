import json
import math
import re

import numpy as np
import pytest
from synthetic import step_metrics, write_run

from sat_slime.config.jsonl import to_json
from sat_slime.report.page import DASH, NBSP
from sat_slime.report.run import (
    FIGURES,
    accuracy_chart,
    ends,
    figures,
    findings,
    panel_chart,
    summary,
    verdict,
    write_report,
)
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.reading import load_run

TIMES = {"last_started": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:05:00+00:00"}
FAILED = json.dumps({"status": "failed", "error": "engine 0 died <4 times>", **TIMES})


def test_the_answer_comes_first_then_one_chart_then_all_else(tmp_path, pictures):
    folder = write_run(tmp_path / "run", 48, state=FAILED)
    page = write_report(folder).read_text()
    order = ["Held-out accuracy rose from", 'id="overview"', 'id="reward"']
    assert [page.index(part) for part in order] == sorted(page.index(part) for part in order)
    for part in ("SAT-GSPO w/ R3 · lag 8", "failed after 5 min 00 s: engine 0 died &lt;4 times&gt;", "48 of 200"):
        assert part in page
    assert f"sat-slime launch {folder} --resume" in page
    for link in re.findall(r'href="((?:figures|tables)/[^"]+)"', page):
        assert (folder / link).stat().st_size > 0


def test_every_panel_is_drawn_from_its_metrics_averaged_over_whole_cycles(tmp_path):
    run = load_run(write_run(tmp_path / "run", 200))
    run.config["method"]["clip"] = {"eps_low": 0.2, "eps_high": 0.28, "dual": 3.0}
    drawn = {chart.name: chart for section in figures(run.data, run.config) for chart in section.charts}
    assert {"accuracy", "d_pi", "reward_1", "mismatch_1", "trust_region_1", "time_1"} <= drawn.keys()
    assert re.findall(r'"datum": ([\d.]+)', json.dumps(drawn["trust_region_1"].spec())) == ["0.2", "0.28"], "its base's"
    (panel,) = (panel for panel in FIGURES["trust_region"][2] if "sat/gate_rate" in panel.metrics)
    (chart,) = panel_chart(run.data, panel, "x")
    frame = chart.frame[chart.frame["line"] == "sat/gate_rate"].reset_index()
    own = 100 * run.data.metrics["sat/gate_rate"]
    np.testing.assert_allclose(frame["single"], own)
    assert frame["y"][100] == pytest.approx(own[96:104].mean())
    (chart,) = panel_chart(run.data, FIGURES["mismatch"][2][0], "x")
    frame = chart.frame[chart.frame["line"] == "mismatch/policy"].reset_index()
    assert frame["x"].tolist() == [*range(4, 201, 4)], "eight of its own steps are a cycle of lag 8"
    assert frame["y"][20] == pytest.approx(frame["single"][16:24].mean())


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_run_that_hardly_began_has_a_report(tmp_path, steps):
    folder = write_run(tmp_path / "run", steps)
    page = write_report(folder).read_text()
    assert f"{steps} of 200 optimizer steps" in page


def test_nothing_but_a_config(tmp_path):
    (tmp_path / "config.yaml").write_text("{not yaml")
    (tmp_path / "state.json").write_text("")
    assert "No step was logged" in write_report(tmp_path).read_text()


def lines(rows):
    return "".join(to_json(row) + "\n" for row in rows)


def forty(**changes):
    return lines(step_metrics(step, **changes) for step in range(1, 41))


FELL = [step_metrics(step, **{"reward/mean": 0.8 if step < 60 else 0.1}) for step in range(1, 101)]
PER_ITERATION = {"tokens/response_total": 500, "time/step": 2.0}
FOUR_STEPS = [step_metrics(step, iteration=(step + 3) // 4, **PER_ITERATION) for step in range(1, 41)]
OF_SLIME = [{key: value for key, value in row.items() if key != "iteration"} for row in FOUR_STEPS[:20]]
SPEED = "5,000 response tokens trained in 20 s: 250 tokens/s."
LAG_2 = [step_metrics(step, **{"lag/max": 11}) for step in range(1, 81)]
LAG_8 = "pipeline: {lag: 8, optimizer_steps_per_rollout: 4, iterations: 20}"
FOUR = "runtime: slime\npipeline: {optimizer_steps_per_rollout: 4, iterations: 10}"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"restarts.jsonl": '{"died_at": 5, "from": 4}\n{"died_at": 9, "from": 8}\n'},
            "was restarted 2 times, after iteration 5 (from 4), 9 (from 8)",
        ),
        ({"restarts.jsonl": '{"died_at": 5, "from": 4}\n'}, "was restarted once, after iteration 5 (from 4)"),
        ({"state.json": '{"status": "running"}', "metrics.jsonl": forty() + '{"step": 41, "rewa'}, "was killed before"),
        ({"metrics.jsonl": forty(**{"sat/scope_too_small": 0.004})}, f"was too small for 0.4{NBSP}% of the tokens"),
        ({"metrics.jsonl": forty(**{"sat/newly_clipped": 3e-4})}, f"the gradient of &lt; 0.1{NBSP}% of the tokens"),
        ({"metrics.jsonl": forty(grad_norm=float("nan"))}, "Not finite: 40 logged values"),
        ({"metrics.jsonl": lines(FELL)}, "reward fell from 0.800"),
        ({"metrics.jsonl": lines(FOUR_STEPS)}, SPEED),
        (
            {"metrics.jsonl": lines(LAG_2), "config.yaml": LAG_8},
            "never exceeded 11 of the 32 updates of pipeline.lag 8",
        ),
        ({"metrics.jsonl": lines(OF_SLIME + FOUR_STEPS[20:]), "config.yaml": FOUR}, f"{SPEED[:-1]}, evaluations"),
        (
            {"state.json": '{"status": "interrupted"}', "metrics.jsonl": lines(map(step_metrics, range(1, 201)))},
            "was interrupted, after its last step.</p>",
        ),
    ],
)
def test_what_happened_is_said(tmp_path, files, said):
    folder = write_run(tmp_path / "run", 40)
    for name, text in files.items():
        (folder / name).write_text(text)
    assert said in write_report(folder).read_text()


def test_ends_average_whole_lag_cycles():
    sawtooth = np.tile([1.0, 2.0, 3.0, 4.0], 25)
    assert ends(sawtooth, 4) == (2.5, 2.5) and ends(np.array([5.0]), 8) == (5.0, 5.0)


def test_the_verdict_tells_noise_lag_and_collapse(tmp_path):
    folder = write_run(tmp_path / "run", 64)
    told = list(verdict(load_run(folder)))
    assert told[1].startswith("In the second half batches were 1 to 8 updates old; d_pi was 0.0")
    (chart,) = accuracy_chart(evaluated(folder, -0.5, -0.4).data)
    assert chart.spec()["title"] == "held-out accuracy", "rewards from -1 to 1 have no error of a share"
    for first in (0, 32):
        (folder / "eval.jsonl").write_text(f'{{"step": {first}, "accuracy": 0.5}}\n{{"step": 64, "accuracy": 0.7}}\n')
        (chart,) = accuracy_chart(load_run(folder).data)
        assert ('{"datum": 0.5}' in json.dumps(chart.spec())) == (first == 0), "dashed: the accuracy before training"
        assert chart.spec()["title"] == "held-out accuracy", "without the number of answers there are no bars"
    evaluated(folder, *[0.8] * 3 + [0.1] * 4, samples=500)
    rewrite_rows = [step_metrics(step, **{"mismatch/d_pi": 0.01 if step < 40 else 0.5}) for step in range(1, 65)]
    (folder / "metrics.jsonl").write_text(lines(rewrite_rows))
    assert next(verdict(load_run(folder))).startswith("Collapsed: ")


def test_batches_that_mix_lags_are_told_by_their_mean_and_their_oldest_token(tmp_path):
    folder = write_run(tmp_path / "run", 1)
    rows = [{"step": i, "lag/mean": 1 + i / 30, "lag/max": i % 4, "mismatch/d_pi": 0.01 * i} for i in range(1, 9)]
    (folder / "metrics.jsonl").write_text(lines(rows))
    said = "In the second half tokens were 1.22 updates old on average, 3 at most; d_pi was 0.065 nats."
    assert list(verdict(load_run(folder)))[1] == said


def evaluated(folder, *accuracies, samples=100):
    rows = [{"step": 32 * i, "accuracy": score, "n_samples": samples} for i, score in enumerate(accuracies)]
    (folder / "eval.jsonl").write_text(lines(rows))
    return load_run(folder)


@pytest.mark.parametrize(
    ("accuracies", "samples", "said"),
    [
        ((0.0, 0.0), 100, "did not change beyond its noise: from 0.0 % to 0.0 %"),
        ((1.0, 1.0), 100, "did not change beyond its noise: from 100.0 % to 100.0 %"),
        ((0.5, 0.52), 100, "did not change beyond its noise"),
        ((0.0, 0.01), 100, "did not change beyond its noise"),
        ((0.3, 0.9, math.nan), 100, "rose from 30.0 % to 90.0 %"),
        ((math.nan, 0.9, 0.3), 100, "fell from 90.0 % to 30.0 %"),
        ((0.3, 0.9), math.nan, "went from 30.0 % to 90.0 %; its noise is not known"),
        ((0.3, math.nan), 100, "accuracy was measured less than twice"),
    ],
)
def test_what_is_said_of_the_accuracy_is_true(tmp_path, accuracies, samples, said):
    run = evaluated(write_run(tmp_path / "run", 64), *accuracies, samples=samples)
    assert said.replace(" %", NBSP + "%") in next(verdict(run)).replace(" %", NBSP + "%")
    assert not any("nan" in text or DASH in text for text in [*verdict(run), *summary(run)])


def test_no_op_is_said_of_the_steps_that_tell_it(tmp_path):
    folder = write_run(tmp_path / "run", 40)
    assert any(text.startswith("SAT removed the gradient of 1.") for text in verdict(load_run(folder)))
    rows = [step_metrics(step, **{"sat/newly_clipped": 0.0 if step % 2 else None}) for step in range(1, 41)]
    (folder / "metrics.jsonl").write_text(lines(rows))
    assert any("SAT changed nothing at the 20 of 40 steps" in text for text in verdict(load_run(folder)))
    (folder / "metrics.jsonl").write_text(forty(**{"sat/newly_clipped": None}))
    assert not any("SAT" in text for text in verdict(load_run(folder)))


@pytest.mark.parametrize("key", ["lag/mean", "lag/max", "mismatch/d_pi", "reward/mean", "sat/scope_too_small"])
@pytest.mark.parametrize("missing", [slice(20, 40), slice(0, 20), slice(0, 40)])
def test_a_column_that_is_missing_at_some_steps_makes_no_false_sentence(tmp_path, key, missing, recwarn):
    folder = write_run(tmp_path / "run", 1)
    rows = [step_metrics(step, **{"sat/scope_too_small": 0.0}) for step in range(1, 41)]
    for row in rows[missing]:
        row[key] = None
    (folder / "metrics.jsonl").write_text(lines(rows))
    run = load_run(folder)
    said = [*verdict(run), *summary(run), *findings(run)]
    assert not any("nan" in text.split() for text in said) and not recwarn.list


def test_how_much_of_the_mismatch_is_lag_is_said_by_the_size_of_each_step(tmp_path):
    """A step without mismatch has no say; a row that is not split has none either."""
    folder = write_run(tmp_path / "run", 1)
    names = [f"mismatch/policy_of_{level}" for level in ("mean", "q90", "q99")]
    rows = [
        {"step": step, "mismatch/d_pi": d, "mismatch/q90": 2 * d, "mismatch/q99": d * d}
        | (dict.fromkeys(names, share) if share is not None else {})
        for step, (d, share) in enumerate([(0.0, 0.0), (1e-9, 0.0), (0.03, 1.0), (0.05, None), (0.01, 0.6)])
    ]
    (folder / "metrics.jsonl").write_text(lines(rows))
    (said,) = [text for text in summary(load_run(folder)) if text]
    for part in ("Over 4 split steps", "90.0 % of mean |d|", "90.0 % of |d| beyond its 90", "96.0 % beyond the 99"):
        assert part in said.replace(NBSP, " ")
    (folder / "metrics.jsonl").write_text(lines(rows[:1]))
    assert not [text for text in summary(load_run(folder)) if text]


def test_a_run_that_went_on_is_told_with_the_time_of_all_its_starts(tmp_path):
    first = {"status": "interrupted", "started": TIMES["last_started"], **TIMES}
    folder = write_run(tmp_path / "run", 40, state=json.dumps(first))
    RunFolder(folder).started()
    RunFolder(folder).ended("finished")
    state = RunFolder(folder).state()
    assert state["started"] == first["started"] and state["worked_s"] == 300
    assert "The run finished after 5 min 0" in write_report(folder).read_text()
