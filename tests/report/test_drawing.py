"""Panels in one column: which stand there, how often each is drawn, and what their files hold."""

import csv

import numpy as np
import pytest

from sat_slime.report.drawing import column_of, save


def panel(name, drawn, filled=True):
    """A panel that notes its name in `drawn` whenever it is drawn, and has data if `filled`."""

    def draw(axes, table):
        drawn.append(name)
        axes.plot([1, 2], [3, 4], label=name)
        axes.set_title(name)
        table[name] = np.array([3.0, 4.0])
        return filled

    return draw


def test_each_panel_is_drawn_once_whether_it_has_data_or_not():
    drawn = []
    column_of([panel("a", drawn), panel("b", drawn, filled=False), panel("c", drawn)], "x")
    assert drawn == ["a", "b", "c"]


@pytest.mark.parametrize("empty", ["a", "b", "c"])
def test_a_panel_without_data_leaves_no_trace(empty, tmp_path):
    """The files are those of a figure that never had the panel."""
    wanted = [name for name in "abc" if name != empty]
    save(column_of([panel(name, [], name != empty) for name in "abc"], "x"), tmp_path, "left_out")
    save(column_of([panel(name, []) for name in wanted], "x"), tmp_path, "never_had")
    for kind in ("png", "svg", "csv"):
        assert (tmp_path / f"left_out.{kind}").read_bytes() == (tmp_path / f"never_had.{kind}").read_bytes()


def test_a_figure_without_any_data_is_none():
    assert column_of([panel("a", [], filled=False)], "x") is None
    assert column_of([], "x") is None


def test_columns_that_are_given_come_before_those_of_the_panels(tmp_path):
    save(column_of([panel("a", [])], "x", table={"step": np.array([1.0, 2.0])}), tmp_path, "figure")
    assert list(csv.reader((tmp_path / "figure.csv").open())) == [["step", "a"], ["1", "3"], ["2", "4"]]
