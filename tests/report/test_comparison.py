"""The page of a comparison: its files, tables, sentences and figures."""

import csv
import re

import numpy as np
import pytest
from synthetic import write_cell, write_slime_log
from typer.testing import CliRunner

from sat_slime.cli.app import app
from sat_slime.report.compared_runs import collect
from sat_slime.report.comparison import (
    draw_scores,
    figures,
    gate_table,
    lag_table,
    limits,
    main_table,
    paper_table,
    pool,
    run_table,
    summary,
    write_comparison,
)
from sat_slime.report.figure_files import save, spec_of
from sat_slime.report.stats import Comparison, paper_contrasts


def test_page_is_self_contained(grid, page):
    assert page.count("data:image/svg+xml;base64,") == 7  # an overview is of a few runs
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page)
    assert 'name="viewport"' in page and "overflow-x: auto" in page
    for link in re.findall(r'href="((?:figures|tables)/[^"]+)"', page):
        assert (grid / link).stat().st_size > 0


def test_every_figure_has_its_files(grid, page, comparison):
    for figure in list(figures(comparison))[1:]:
        for kind in ("csv", "png", "svg"):
            assert (grid / "figures" / f"{figure.name}.{kind}").exists()


def test_a_chart_stands_before_the_tables(page):
    assert page.index('id="scores"') < page.index('id="main_lag_1"')
    assert page.count('id="scores"') == 1


def test_many_lags_have_one_sentence(tmp_path):
    for lag in (1, 2, 3, 4):
        for seed in (0, 1):
            write_cell(tmp_path / "runs" / f"grpo-lag{lag}-seed{seed}", "grpo", lag, seed)
            write_cell(tmp_path / "runs" / f"gspo-lag{lag}-seed{seed}", "gspo", lag, seed)
    comparison = Comparison(collect(sorted((tmp_path / "runs").iterdir())))
    (sentence,) = (text for text in summary(comparison, []) if text.startswith("Highest late accuracy"))
    assert [f"lag {lag} G" in sentence for lag in (1, 2, 3, 4)] == [True] * 4 and "1 others" in sentence


def test_paper_and_ours_are_told_apart(page):
    assert "paper, 30B, one seed" in page
    assert "ours, lab model, 1 to 3 seeds" in page


def test_csv_of_a_figure_of_methods_names_them(grid, page):
    rows = list(csv.DictReader((grid / "figures" / "scores.csv").open()))
    assert "SAT-GSPO w/ R3" in {row["method"] for row in rows}


def test_csv_of_the_table_holds_plain_numbers(grid, page):
    (row,) = (r for r in csv.DictReader((grid / "tables" / "main_lag_8.csv").open()) if r["method"] == "gspo")
    assert (row["paper AIME24 %"], row["paper collapsed"], row["collapsed"], row["seeds"]) == ("31.46", "1", "1", "3")
    assert 0 < float(row["best mean"]) < 1


def test_text_from_files_is_escaped(tmp_path):
    folder = write_cell(tmp_path / "runs" / "x", "grpo", 1, 0, 20, "failed")
    (tmp_path / "<script>a").mkdir()
    folder.rename(tmp_path / "<script>a" / "<b>name-lag1-seed0")
    run = tmp_path / "<script>a" / "<b>name-lag1-seed0"
    (run / "config.yaml").write_text("method: {base: '<img src=x>'}\nseed: 1\npipeline: {lag: 1, iterations: 999}\n")
    page = write_comparison([tmp_path / "<script>a" / "<b>name-lag1-seed0"], tmp_path / "out")
    text = page.read_text()
    data = re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL)  # Vega
    assert "<img src=x>" not in data.lower() and "<b>" not in data
    assert set(re.findall(r"<script[^>]*>", data)) == {'<script type="application/json">'}
    assert "engine 0 died &lt;often&gt;" in text


def test_formulas_stay_text_in_a_spreadsheet(tmp_path, draw_only):
    draw_only()
    write_comparison([write_slime_log(tmp_path / "=cmd.jsonl")], tmp_path / "out")
    assert "'=cmd" in (tmp_path / "out" / "tables" / "runs.csv").read_text()


def test_three_files_of_slimes_metrics_without_any_run_folder(tmp_path):
    names = ("gspo-lag8-seed1", "sat-gspo-lag8-seed1", "another run")
    paths = [write_slime_log(tmp_path / f"{name}.jsonl", seed) for seed, name in enumerate(names)]
    written = write_comparison(paths, tmp_path / "out")
    text = written.read_text()
    assert "ours, model not stated, 1 seed" in text
    assert "The runs come without their settings" in text
    assert "another run" in text and "one seed" in text
    assert "beyond noise: " not in text.split("Rules and tests")[0].split("Bold, beyond noise: ")[0]
    drawn = {path.stem for path in (tmp_path / "out" / "figures").glob("*.svg")}
    assert drawn == {"overview", "scores", "drift", "accuracy", "reward"}


def test_runs_that_hardly_began(tmp_path):
    paths = [write_cell(tmp_path / str(steps), "sat-grpo", 8, steps, steps) for steps in (0, 1, 2)]
    written = write_comparison(paths, tmp_path / "out")
    assert "0 whole runs of 1 method, 3 not whole." in written.read_text()


# ---------------------------------------------------------------------------------------------------- command


def report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_command_takes_one_run_several_or_a_grid(tmp_path, grid, page, monkeypatch, draw_only):
    monkeypatch.chdir(tmp_path)
    draw_only("drift")
    run = grid / "runs" / "grpo-lag1-seed0"
    assert report(run).output.strip() == str(run / "report.html")
    assert report(run, grid / "runs" / "gspo-lag1-seed0").output.strip() == "report/report.html"
    (grid / "figures" / "drift.png").read_bytes().index(b"PNG")


def test_bad_input_is_a_line(tmp_path, grid, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, part in (
        ((tmp_path / "none",), "is no run, grid or file of metrics"),
        ((grid, "--out", grid / "runs"), "exists and is no report: choose another --out"),
        ((grid, "--out", grid / "grid.yaml"), "exists and is no report: choose another --out"),
    ):
        result = report(*arguments)
        assert result.exit_code == 2 and part in result.output.replace("\n", " ")


@pytest.fixture(scope="module")
def specs(comparison):
    return {figure.name: (drawing, spec_of(drawing)) for figure in figures(comparison) if (drawing := figure.draw())}


def keys(part):
    """The keys of a figure: the looks of their samples, by name."""
    for one in part.get("vconcat", ()):
        channels = one.get("encoding", {})
        if "stroke" in channels and "layer" not in one:
            scales = [channels[channel]["scale"] for channel in ("shape", "stroke", "fill")]
            yield dict(zip(scales[0]["domain"], zip(*(scale["range"] for scale in scales), strict=True), strict=True))


def test_no_two_lines_of_a_figure_are_drawn_alike(specs):
    for name, (_, spec) in specs.items():
        for looks in keys(spec):
            assert len(set(looks.values())) == len(looks), name
    assert len(next(keys(specs["drift"][1]))) == 7


def test_curves_are_those_of_the_table(specs):
    drawing, spec = specs["drift"]
    rows = [row for rows in spec["datasets"].values() for row in rows if row.get("line") == "GSPO" and "y" in row]
    known = [drawing.table[f"gspo lag {lag}: mean"] for lag in (1, 8)]
    np.testing.assert_allclose([row["y"] for row in rows], np.concatenate(known), rtol=1e-4)


def test_base_radii_stand_beside_those_that_sat_left(specs):
    _, spec = specs["sat_lag_8"]
    rows = [
        row for rows in spec["datasets"].values() for row in rows if row["line"] == "base radius 0.2" and "y" in row
    ]
    assert len(rows) == 4 and {row["y"] for row in rows} == {0.2}


def test_a_lag_that_the_paper_has_not_has_no_panel_of_it(tmp_path):
    cells = [write_cell(tmp_path / f"{lag}", "gspo", lag, 0, 200) for lag in (4, 8)]
    drawing = draw_scores(Comparison(collect(cells), paper=True))
    titles = [[panel["title"] for panel in row["hconcat"]] for row in spec_of(drawing)["vconcat"]]
    assert titles == [["lag 4: ours"], ["lag 8: paper", "lag 8: ours"]]
    assert np.isnan(drawing.table["lag 4: paper %"]).all()


def test_figures_of_equal_data_are_equal(comparison, tmp_path):
    for name in ("one", "two"):
        for figure in figures(comparison):
            if figure.name in ("scores", "drift"):
                drawing = figure.draw()
                save(spec_of(drawing), drawing.table, tmp_path / name, figure.name)
    for name in ("scores", "drift"):
        assert (tmp_path / "one" / f"{name}.svg").read_bytes() == (tmp_path / "two" / f"{name}.svg").read_bytes()


def row_of(sheet, method):
    return next(row for row in sheet.rows if row[0] == method)


def test_main_table(comparison):
    sheet = main_table(comparison, 8, "ours")
    assert row_of(sheet, "SAT-GSPO w/ R3")[1:3] == ["34.79 (359)", "0.0076"]
    assert row_of(sheet, "GSPO")[1] == "31.46 (424) ‡"
    assert "‡ 1/3" in row_of(sheet, "GSPO")[3]
    assert row_of(sheet, "GRPO w/ TIS")[6] == "2 (+1 not whole)"
    runs = [comparison.of(run) for run in comparison.collection.of("dppo", 8)]
    assert row_of(sheet, "DPPO")[3].startswith(f"{100 * np.mean([run.best for run in runs]):.1f} [")
    assert any("≈" in cell for row in sheet.rows for cell in row)


def test_a_cell_with_one_seed_has_no_interval(comparison):
    best = row_of(main_table(comparison, 1, "ours"), "SAT-GSPO")[3]
    assert "[" not in best and best.endswith("?")


def test_every_run_is_listed_with_what_became_of_it(comparison):
    rows = run_table(comparison).rows
    assert len(rows) == 7 * 2 * 3
    by_cell = {tuple(row[:3]): row for row in rows}
    assert by_cell["GRPO w/ TIS", "8", "2"][3] == "failed, not counted"
    assert by_cell["GRPO w/ TIS", "8", "2"][-1] == "engine 0 died <often>"
    assert by_cell["DPPO", "1", "1"][3] == "not run"
    assert by_cell["GSPO", "8", "1"][8].startswith("collapsed from ")
    assert by_cell["GSPO", "8", "0"][8] == "no"


def test_differences_name_their_verdict(comparison):
    sheet = paper_table(paper_contrasts(comparison))
    verdicts = {cell.splitlines()[-1] for row in sheet.rows for cell in row[4:7] if "\n" in cell}
    assert verdicts <= {"within noise", "lead", "beyond noise", "one seed"} and "within noise" in verdicts


def test_summary_and_limits_say_what_is_missing(comparison):
    words = " ".join([*summary(comparison, paper_contrasts(comparison)), *limits(comparison)])
    for part in (
        "1 not whole, 3 planned and not run",
        "The collapse rule marks 1 of 39 runs with enough scores to tell: GSPO lag 8 seed 1.",
        "Qwen3-MoE of 2 layers",
        "All seeds start from one and the same initial model",
        "Not counted: GRPO w/ TIS lag 8 seed 2, failed after 90 steps",
        "GRPO w/ R3 at lag 1",
        "within noise is not the same as equal",
    ):
        assert part in words


def test_tail_is_pooled_by_realized_lag(comparison):
    runs = comparison.collection.of("grpo", 8)
    pools = pool(runs)
    assert set(pools) <= set(range(9)) and len(pools) > 4
    assert sum(one.counts.sum() for one in pools.values()) == len(runs) * 200 * 3300


def test_gate_opens_above_q_alone(comparison):
    pools = pool(comparison.collection.of("sat-grpo", 8))
    for one in pools.values():
        assert (one.beyond_gate <= one.counts).all()
        below, above = one.edges < 1e-3, one.edges > 1
        assert one.beyond_gate[:-1][below].sum() == 0
        assert (one.beyond_gate[1:][above] == one.counts[1:][above]).all()


def test_lag_tables(comparison):
    table = lag_table(comparison.collection)
    assert table.head[:4] == ["method", "lag", "realized", "steps"]
    at_8 = [row for row in table.rows if row[:2] == ["SAT-GRPO", "8"]]
    assert [row[2] for row in at_8] == [str(lag) for lag in range(9)]
    assert sum(int(row[3]) for row in at_8) == 3 * 200
    shares = [float(cell.split("%")[0]) for cell in gate_table(comparison.collection).rows[0][2:]]
    assert sum(shares) == pytest.approx(100, abs=0.1)
