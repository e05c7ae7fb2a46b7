from sat_slime.objective import PAPER_METHODS
from sat_slime.report.paper_numbers import BASE_MODEL_SCORE, LAGS, MAIN_TABLE


def test_every_cell_of_table_1_is_there():
    assert list(MAIN_TABLE) == [(method.name, lag) for method in PAPER_METHODS for lag in LAGS]
    assert len(MAIN_TABLE) == 26


def test_what_the_paper_says_of_its_own_table():
    """The text beside Table 1: its best cells, its margins, its collapses."""
    score = {cell: number.score for cell, number in MAIN_TABLE.items()}
    for lag, best in zip(LAGS, (35.83, 34.79), strict=True):
        assert max((score[method.name, lag], method.name) for method in PAPER_METHODS) == (best, "sat-gspo-r3")
    margins = [
        round(score["sat-gspo-r3", lag] - score[other, lag], 2) for lag in LAGS for other in ("grpo", "gspo", "dppo")
    ]
    assert margins == [4.58, 3.58, 1.87, 4.62, 3.33, 2.08]
    assert [cell for cell, number in MAIN_TABLE.items() if number.collapsed] == [("grpo", 8), ("gspo", 8)]
    lowest = {lag: min((MAIN_TABLE[m.name, lag].d_pi, m.name) for m in PAPER_METHODS) for lag in LAGS}
    assert lowest == {1: (0.0048, "grpo-tis-r3"), 8: (0.0068, "gspo-tis-r3")}
    assert all(number.score > BASE_MODEL_SCORE for number in MAIN_TABLE.values())


def test_steps_are_those_of_an_evaluation_every_five_iterations():
    assert {number.step % 5 for number in MAIN_TABLE.values()} == {4}
