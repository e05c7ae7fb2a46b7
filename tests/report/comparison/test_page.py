import csv
import re

import numpy as np
import pytest
from synthetic import write_cell, write_grid, write_slime_log
from typer.testing import CliRunner

from sat_slime.cli.app import app
from sat_slime.report.comparison import geometry
from sat_slime.report.comparison.collection import collect
from sat_slime.report.comparison.contrasts import Comparison
from sat_slime.report.comparison.limits import limits, summary
from sat_slime.report.comparison.page import figures, write_grid_report
from sat_slime.report.comparison.tables import difference_table, main_table, run_table
from sat_slime.report.comparison.tail import gate_table, lag_table, pool
from sat_slime.report.drawing import save

METHODS = ("grpo", "gspo", "grpo-tis", "dppo", "sat-grpo", "sat-gspo", "sat-gspo-r3")


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Seven methods x 2 lags x 3 seeds: a collapsed run, a failed one, a missing one, a cell with one seed."""
    return write_grid(tmp_path_factory.mktemp("grids") / "demo", METHODS)


@pytest.fixture(scope="module")
def comparison(grid):
    return Comparison(collect([grid]))


@pytest.fixture(scope="module")
def page(grid):
    (written,) = write_grid_report([grid])
    return written.read_text()


def row_of(sheet, method):
    return next(row for row in sheet.rows if row[0] == method)


def test_page_is_self_contained(grid, page):
    assert page.count("data:image/svg+xml;base64,") == 10
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page)
    assert 'name="viewport"' in page and "overflow-x: auto" in page
    for link in re.findall(r'href="((?:figures|tables)/[^"]+)"', page):
        assert (grid / link).stat().st_size > 0


def test_every_figure_has_its_files_and_its_command(grid, page, comparison):
    for figure in figures(comparison):
        assert f"--figure {figure.name}</code>" in page
        for kind in ("csv", "png", "svg"):
            assert (grid / "figures" / f"{figure.name}.{kind}").exists()


def test_paper_and_ours_are_told_apart(page):
    assert "paper, 30B, one seed" in page
    assert "ours, embedded model, 1 to 3 seeds" in page


def test_main_table(comparison):
    sheet = main_table(comparison, 8, "ours")
    assert row_of(sheet, "SAT-GSPO w/ R3")[1:3] == ["34.79 (359)", "0.0076"]
    assert row_of(sheet, "GSPO")[1] == "31.46 (424) ‡"
    assert "‡ 1/3" in row_of(sheet, "GSPO")[3]
    assert row_of(sheet, "GRPO w/ TIS")[6] == "2 (+1 not whole)"
    runs = [comparison.of(cell) for cell in comparison.collection.of("dppo", 8)]
    assert row_of(sheet, "DPPO")[3].startswith(f"{100 * np.mean([run.best for run in runs]):.1f} [")
    assert any("≈" in cell for row in sheet.rows for cell in row)


def test_a_cell_with_one_seed_has_no_interval(comparison):
    best = row_of(main_table(comparison, 1, "ours"), "SAT-GSPO")[3]
    assert "[" not in best and best.endswith("?")


def test_every_run_is_listed_with_what_became_of_it(comparison):
    rows = run_table(comparison).rows
    assert len(rows) == len(METHODS) * 2 * 3
    by_cell = {tuple(row[:3]): row for row in rows}
    assert by_cell["GRPO w/ TIS", "8", "2"][3] == "failed, not counted"
    assert by_cell["GRPO w/ TIS", "8", "2"][-1] == "engine 0 died <often>"
    assert by_cell["DPPO", "1", "1"][3] == "not run"
    assert by_cell["GSPO", "8", "1"][8].startswith("collapsed from ")
    assert by_cell["GSPO", "8", "0"][8] == "no"


def test_summary_and_limits_say_what_is_missing(comparison):
    words = " ".join([*summary(comparison), *limits(comparison)])
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


def test_differences_name_their_verdict(comparison):
    sheet = difference_table(comparison)
    verdicts = {cell.splitlines()[-1] for row in sheet.rows for cell in row[4:7] if "\n" in cell}
    assert verdicts <= {"within noise", "lead", "beyond noise", "one seed"} and "within noise" in verdicts


@pytest.mark.parametrize("name", ["scores", "parts"])
def test_csv_of_a_figure_of_methods_names_them(grid, page, name):
    rows = list(csv.DictReader((grid / "figures" / f"{name}.csv").open()))
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
    (page,) = write_grid_report([tmp_path / "<script>a" / "<b>name-lag1-seed0"], tmp_path / "out")
    text = page.read_text()
    assert "<img src=x>" not in text.lower() and "<script" not in text and "<b>" not in text
    assert "engine 0 died &lt;often&gt;" in text


def test_formulas_stay_text_in_a_spreadsheet(tmp_path):
    write_grid_report([write_slime_log(tmp_path / "=cmd.jsonl")], tmp_path / "out")
    assert "'=cmd" in (tmp_path / "out" / "tables" / "runs.csv").read_text()


def test_three_files_of_slimes_metrics_without_any_run_folder(tmp_path):
    names = ("gspo-lag8-seed1", "sat-gspo-lag8-seed1", "another run")
    paths = [write_slime_log(tmp_path / f"{name}.jsonl", seed) for seed, name in enumerate(names)]
    (written,) = write_grid_report(paths, tmp_path / "out")
    text = written.read_text()
    assert "ours, model not stated, 1 seed" in text
    assert "The runs come without their settings" in text
    assert "another run" in text and "one seed" in text
    assert "beyond noise: " not in text.split("Rules and tests")[0].split("Bold, beyond noise: ")[0]
    drawn = {path.stem for path in (tmp_path / "out" / "figures").glob("*.svg")}
    assert drawn == {"scores", "drift", "accuracy", "reward", "departure", "geometry"}


def test_runs_that_hardly_began(tmp_path):
    paths = [write_cell(tmp_path / str(steps), "sat-grpo", 8, steps, steps) for steps in (0, 1, 2)]
    (written,) = write_grid_report(paths, tmp_path / "out")
    assert "0 whole runs of 1 methods; 3 not whole" in written.read_text()


# --------------------------------------------------------------------------------------------------- geometry


def test_geometry_is_that_of_the_papers_masks():
    """Eqs. app-ppo-mask and app-dppo-mask; Proposition geometry (iii) for SAT."""
    r, a = np.meshgrid(geometry.RATIOS, geometry.ADVANTAGES)
    outward = a * (r - 1) > 0
    clear = np.minimum(np.abs(np.abs(r - 1) - 0.2), np.abs(np.abs(r - 1) - 0.1)) > 1e-9  # off the kinks
    ppo, dppo = geometry.by_method("ppo"), geometry.by_method("dppo")
    np.testing.assert_array_equal((ppo == 0)[clear], (outward & (np.abs(r - 1) > 0.2))[clear])
    np.testing.assert_array_equal((dppo == 0)[clear], (outward & (np.abs(r - 1) > 0.1))[clear])  # delta / mu
    np.testing.assert_allclose(ppo[ppo != 0], a[ppo != 0], rtol=1e-12)


def test_sat_stops_more_than_ppo_and_only_outward():
    r, a = np.meshgrid(geometry.RATIOS, geometry.ADVANTAGES)
    ppo = geometry.by_method("ppo")
    for sat in (geometry.with_fixed_factor(), geometry.by_method("sat-grpo", geometry.QUANTILE)):
        assert ((ppo == 0) <= (sat == 0)).all()
        newly = (sat == 0) & (ppo != 0)
        assert newly.any() and (a * (r - 1) > 0)[newly].all()
    fixed = (geometry.with_fixed_factor() == 0) & (ppo != 0)
    assert 0.12 <= np.abs(r - 1)[fixed].min() <= 0.125 + 1e-9  # beyond 0.2 x 0.6
    np.testing.assert_array_equal(geometry.by_method("sat-grpo", float("inf")), ppo)


# ------------------------------------------------------------------------------------------------------- tail


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
    rows = lag_table(comparison.collection)
    assert rows[0][:4] == ["method", "lag", "realized", "steps"]
    at_8 = [row for row in rows[1:] if row[:2] == ["SAT-GRPO", "8"]]
    assert [row[2] for row in at_8] == [str(lag) for lag in range(9)]
    assert sum(int(row[3]) for row in at_8) == 3 * 200
    shares = [float(cell.split("%")[0]) for cell in gate_table(comparison.collection)[1][2:]]
    assert sum(shares) == pytest.approx(100, abs=0.1)


# ---------------------------------------------------------------------------------------------------- command


def report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_command_takes_one_run_several_or_a_grid(tmp_path, grid, page, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = grid / "runs" / "grpo-lag1-seed0"
    assert report(run).output.strip() == str(run / "report.html")
    assert report(run, grid / "runs" / "gspo-lag1-seed0").output.strip() == "report/report.html"
    assert report(grid, "--figure", "drift").output.strip() == str(grid / "figures" / "drift.png")
    (grid / "figures" / "drift.png").read_bytes().index(b"PNG")


def test_bad_input_is_a_line(tmp_path, grid, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, part in (
        ((tmp_path / "none",), "is no run, grid or file of metrics"),
        ((grid, "--figure", "nope"), "--figure nope: no such figure; there are scores, drift"),
        ((grid, "--out", grid / "runs"), "exists and is no report: choose another --out"),
    ):
        result = report(*arguments)
        assert result.exit_code == 2 and part in result.output.replace("\n", " ")


def test_figures_of_equal_data_are_equal(comparison, tmp_path):
    for name in ("one", "two"):
        for figure in figures(comparison):
            if figure.name in ("scores", "drift"):
                save(figure.draw(), tmp_path / name, figure.name)
    for name in ("scores", "drift"):
        assert (tmp_path / "one" / f"{name}.svg").read_bytes() == (tmp_path / "two" / f"{name}.svg").read_bytes()
