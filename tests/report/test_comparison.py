"""The page of a comparison: its files, tables and sentences."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from synthetic import write_cell, write_slime_log

from sat_slime.report.comparison import (
    difference_table,
    limits,
    main_table,
    method_curves,
    run_table,
    sections,
    summary,
    unequal,
    write_comparison,
)
from sat_slime.report.frames import collect
from sat_slime.report.methods import MAIN_TABLE
from sat_slime.report.stats import contrasts, scores_of

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "stale-but-stable.tex"


def test_the_answer_stands_first_then_one_chart_then_the_table_beside_the_paper(grid, page):
    names = ("accuracy", "main_lag_1", "differences", "mismatch_d_pi", "runs")
    places = [page.index('class="answer"'), *(page.index(f'id="{name}"') for name in names)]
    assert places == sorted(places)
    assert "paper, 30B, one seed" in page and "ours, lab model, 1 to 3 seeds" in page
    for link in re.findall(r'href="(tables/[^"]+|figures/[^"]+csv)"', page):
        assert (grid / link).stat().st_size > 0


def test_text_from_files_is_escaped_and_formulas_stay_text(tmp_path):
    run = tmp_path / "<script>a" / "<b>name-lag1-seed0"
    run.parent.mkdir()
    write_cell(tmp_path / "x", "grpo", 1, 0, 20, "failed").rename(run)
    (run / "config.yaml").write_text("method: {base: '<img src=x>'}\nseed: 1\npipeline: {lag: 1, iterations: 999}\n")
    text = write_comparison([run, write_slime_log(tmp_path / "=cmd.jsonl")], tmp_path / "out").read_text()
    assert "<img src=x>" not in text.lower() and "<b>" not in text and "engine 0 died &lt;often&gt;" in text
    assert "'=cmd" in (tmp_path / "out" / "tables" / "runs.csv").read_text()


def test_with_one_seed_nothing_is_shown_that_needs_several(tmp_path):
    paths = [write_cell(tmp_path / name, name, 8, 0) for name in ("gspo", "sat-gspo")]
    collection = collect(paths)
    shown = {section.name: section for section in sections(collection, contrasts(collection))}
    assert "differences" not in shown and "bootstrap" not in shown["rules"].text
    assert "interval" not in shown["main_lag_8"].note and "one seed a cell" in " ".join(limits(collection))
    assert not any("low" in chart.frame for section in shown.values() for chart in section.charts)
    (said,) = [text for text in summary(collection, contrasts(collection)) if "SAT against its own base" in text]
    late = [scores_of(collection, name, 8, "late")[0] for name in ("sat-gspo", "gspo")]
    assert f"{100 * (late[0] - late[1]):+.1f}" in said.replace("−", "-") and "one seed" in said


def test_files_of_slimes_metrics_without_any_run_folder(tmp_path):
    names = ("gspo-lag8-seed1", "sat-gspo-lag8-seed1", "another run")
    paths = [write_slime_log(tmp_path / f"{name}.jsonl", seed) for seed, name in enumerate(names)]
    text = write_comparison(paths, tmp_path / "out").read_text()
    for part in ("ours, model not stated, 1 seed", "The settings of 3 runs are not known here", "another run"):
        assert part in text
    told = list(limits(collect([*paths, write_cell(tmp_path / "ours", "grpo", 8, 2, 20)])))
    assert "3 runs" in told[0] and not any("the same settings" in text for text in told)
    runs = {(run.method, run.lag, run.seed, run.counts) for run in collect(paths).runs}
    assert {("gspo", 8, 1, True), ("sat-gspo", 8, 1, True)} < runs


def test_files_of_one_name_are_lines_of_their_own(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    runs = collect([write_slime_log(tmp_path / name / "run.jsonl", i, 60 - 30 * i) for i, name in enumerate("ab")])
    assert [*unequal(runs)] == ["Whole runs have 30 to 60 steps, which may itself make a difference."]
    assert "; fewer than two common seeds: no test." in " ".join(summary(runs, contrasts(runs)))
    (chart,) = method_curves(runs, "mismatch/d_pi", runs.lags[0])
    assert [Path(line.rpartition(" ")[2]).parent.name for line in chart.frame["line"].unique()] == ["a", "b"]


def test_runs_that_hardly_began(tmp_path):
    paths = [write_cell(tmp_path / str(steps), "sat-grpo", 8, steps, steps) for steps in (0, 1, 2)]
    assert "0 whole runs of 1 method, 3 not whole." in write_comparison(paths, tmp_path / "out").read_text()


def test_a_grid_that_did_not_begin_lists_its_cells_beside_the_paper(tmp_path):
    (tmp_path / "grid.yaml").write_text("methods: [gspo, sat-gspo]\nlags: [1]\nseeds: [0]\n")
    text = write_comparison([tmp_path], paper=True).read_text()
    assert "2 planned and not run" in text and text.count("<td>not run") == 2 and ">ours, no whole run;" in text


def cells(table, column=0):
    """The texts of a table by its first column."""
    return {cells[column]: dict(zip(table.forms, cells, strict=True)) for _, cells in table.rows()}


def test_main_table(collection, grid, page):
    table = main_table(collection, 8)
    shown = cells(table)
    assert (shown["SAT-GSPO w/ R3"]["AIME24, %"], shown["SAT-GSPO w/ R3"]["d_pi"]) == ("34.79 (359)", "0.0076")
    assert shown["GSPO"]["AIME24, %"] == "31.46 (424) ‡" and "‡ 1/3" in shown["GSPO"]["best, %"]
    assert shown["GRPO w/ TIS"]["runs"] == "2 of 3"
    best = list(scores_of(collection, "dppo", 8, "best").values())
    assert shown["DPPO"]["best, %"].startswith(f"{100 * np.mean(best):.1f} [")
    assert any("≈" in text for row in shown.values() for text in row.values())
    alone = cells(main_table(collection, 1))["SAT-GSPO"]["best, %"]
    assert "[" not in alone and alone.endswith("?")
    steps = scores_of(collection, "grpo-tis", 8, "best_step").values()
    assert table.frame.set_index("method")["median best step"]["grpo-tis"] == sum(steps) / len(steps) > min(steps)
    with open(grid / "tables" / "main_lag_8.csv", newline="") as file:
        (row,) = (row for row in csv.DictReader(file) if row["method"] == "gspo")
    assert (row["paper AIME24 %"], row["paper collapsed"], row["collapsed"], row["seeds"]) == ("31.46", "1", "1", "3")
    assert MAIN_TABLE["gspo", 8].d_pi == float(row["paper d_pi"]) and 0 < float(row["best mean"]) < 1


def test_the_papers_table_is_its_own():
    if not PAPER.exists():
        pytest.skip("the paper's source is not here")
    rows = {}
    for line in PAPER.read_text().partition(r"\label{tab:main-combined}")[2].partition(r"\bottomrule")[0].splitlines():
        plain = re.sub(r"~?\\cite\w*\{[^}]*\}|\\textcolor\{\w+\}|\\(textbf|underline|satr)\b|[{}]", "", line)
        name, *numbers = (cell.strip().rstrip("\\ ") for cell in plain.split("&"))
        if len(numbers) == 4 and "(" in numbers[0]:
            method = name.replace("-G", "SAT-G", 1).replace(" w/ ", "-").lower()
            for lag, score, d_pi in ((1, numbers[0], numbers[2]), (8, numbers[1], numbers[3])):
                best, step = score.rstrip(" )").split(" (")
                rows[method, lag] = (float(best), int(step.split()[0]), float(d_pi), "collapse" in step)
    assert len(rows) == 26
    assert {key: (cell.score, cell.step, cell.d_pi, cell.collapsed) for key, cell in MAIN_TABLE.items()} == rows


def test_numbers_are_shown_in_their_units(collection):
    for table, names in (
        (main_table(collection, 8), {"best": "best, %", "late": "late, %", "d_pi": "d_pi, nats"}),
        (difference_table(contrasts(collection)), {"best": "best", "late": "late", "d_pi": "d_pi, nats"}),
    ):
        compared = 0
        for row, (_, texts) in zip(table.frame.to_dict("records"), table.rows(), strict=True):
            shown = dict(zip(table.forms, texts, strict=True))
            for quantity, name in names.items():
                if number := re.match(r"[+−]?\d+\.(\d+)", str(shown[name])):
                    mean = row[f"{quantity} mean"] * (1 if quantity == "d_pi" else 100)
                    assert float(number[0].replace("−", "-")) == pytest.approx(mean, abs=0.51 * 10 ** -len(number[1]))
                    compared += 1
        assert compared > 2 * len(table.frame)


def test_every_run_is_listed_with_what_became_of_it(collection):
    rows = {(row["method"], row["lag"], row["seed"]): row for row in run_table(collection).frame.to_dict("records")}
    assert len(rows) == 7 * 2 * 3
    failed, collapsed = rows["grpo-tis", 8, 2], rows["gspo", 8, 1]
    assert (failed["state"], failed["error"], failed["steps"]) == ("failed, not counted", "engine 0 died <often>", 90)
    assert rows["dppo", 1, 1]["state"] == "not run"
    assert collapsed["collapse rule"].startswith("collapsed from ") and rows["gspo", 8, 0]["collapse rule"] == "no"


def test_differences_name_their_verdict(collection):
    frame = contrasts(collection)
    verdicts = set(frame[["best verdict", "late verdict", "d_pi verdict"]].to_numpy().ravel()) - {""}
    assert verdicts <= {"within noise", "lead", "beyond noise", "one seed"} and "within noise" in verdicts
    row = frame[(frame["difference"] == "SAT-GRPO − GRPO") & (frame["lag"] == "8")].iloc[0]
    a, b = (scores_of(collection, method, 8, "d_pi") for method in ("sat-grpo", "grpo"))
    assert row["d_pi mean"] == pytest.approx(np.mean([a[seed] - b[seed] for seed in a]))
    assert row["paper d_pi"] == pytest.approx(0.0108 - 0.0110)
    assert len(list(difference_table(frame).rows())) == len(frame)


def test_summary_and_limits_say_what_is_missing(collection):
    words = " ".join([*summary(collection, contrasts(collection)), *limits(collection)])
    for part in (
        "1 not whole, 3 planned and not run",
        "The collapse rule marks 1 of 39 runs with enough scores to tell: GSPO lag 8 seed 1.",
        "All seeds start from one and the same initial model",
        "Not counted: GRPO w/ TIS lag 8 seed 2, failed after 90 steps",
    ):
        assert part in words


def test_whole_runs_of_unequal_lengths_are_named_first(tmp_path):
    paths = [write_cell(tmp_path / f"gspo-seed{seed}", "gspo", 1, seed, 20, state="finished") for seed in (0, 1)]
    assert not [*unequal(collect(paths))]
    config = paths[0] / "config.yaml"
    config.write_text(config.read_text().replace("iterations: 200", "iterations: 20"))
    assert "have 20 to 200 steps" in write_comparison(paths, tmp_path / "out").read_text()
    (paths[1] / "eval.jsonl").write_text('{"step": 0, "accuracy": 0.2}\n{"step": 10, "accuracy": 0.4}\n')
    told = "last quarter of the steps in 1 whole run, such as GSPO lag 1 seed 1"
    assert any(told in one for one in unequal(collect(paths)))
    for path, name in zip(paths, ("math", "aime"), strict=True):
        (path / "eval.jsonl").write_text(f'{{"step": 20, "dataset": "{name}", "accuracy": 0.4}}\n')
    assert next(unequal(collect(paths))).endswith("in all runs and do not compare: aime, math.")


def test_what_was_not_measured_is_not_called_noise(tmp_path):
    paths = [write_cell(tmp_path / f"{name}{i}", name, 1, i) for name in ("gspo", "sat-gspo") for i in range(3)]
    for path in paths:
        (path / "eval.jsonl").unlink()
    (told,) = [text for text in summary(collect(paths), contrasts(collect(paths))) if "told from noise" in text]
    assert told.startswith("SAT against its own base, 1 comparison: d_pi: ")


def test_the_score_before_training_is_that_of_the_tables_own_runs(tmp_path):
    paths = [write_cell(tmp_path / f"gspo-lag{lag}-seed0", "gspo", lag, 0, state="finished") for lag in (2, 8)]
    (paths[0] / "eval.jsonl").unlink()
    without, measured = (main_table(collect(paths), lag).note for lag in (2, 8))
    assert "Before training" not in without and "Before training: 2" in measured
