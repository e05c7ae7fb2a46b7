import numpy as np

from sat_slime.report.comparison.comparison_tables import main_table, paper_table, run_table
from sat_slime.report.comparison.paper_contrasts import paper_contrasts


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
