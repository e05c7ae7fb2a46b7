"""Panels in one column: which stand there, how often each is drawn, and what their files hold."""

import csv

import altair as alt
import numpy as np
import pytest

from sat_slime.report.drawing import Plot, column_of, lines, rows, tip
from sat_slime.report.figure_files import save, spec_of
from sat_slime.report.looks import BLUE, Look


def panel(name, drawn, filled=True):
    """A panel that notes its name in `drawn` whenever it is drawn, and has data if `filled`."""

    def draw(table, shown):
        drawn.append(name)
        table[name] = np.array([3.0, 4.0])
        look = Look(name, BLUE, "-", "o")
        base = alt.Chart(rows(x=[1, 2], y=table[name], line=name)).encode(alt.X("x:Q"), alt.Y("y:Q"))
        chart = alt.layer(*lines(base.transform_filter(shown), [look], [tip("y:Q", "y")]), title=name)
        return Plot(chart, [look]) if filled else None

    return draw


def test_each_panel_is_drawn_once_whether_it_has_data_or_not():
    drawn = []
    column_of([panel("a", drawn), panel("b", drawn, filled=False), panel("c", drawn)])
    assert drawn == ["a", "b", "c"]


@pytest.mark.parametrize("empty", ["a", "b", "c"])
@pytest.mark.parametrize("one_key", [True, False])
def test_a_panel_without_data_leaves_no_panel(empty, one_key):
    wanted = [name for name in "abc" if name != empty]
    panels = [panel(name, [], name != empty) for name in "abc"]
    spec = spec_of(column_of(panels, one_key=one_key))
    titles = [part["title"] for part in spec["vconcat"] if "title" in part]
    assert titles == wanted
    assert len(spec["vconcat"]) == (3 if one_key else 4)


def test_a_figure_without_any_data_is_none():
    assert column_of([panel("a", [], filled=False)]) is None
    assert column_of([]) is None


def test_columns_that_are_given_come_before_those_of_the_panels(tmp_path):
    drawing = column_of([panel("a", [])], table={"step": np.array([1.0, 2.0])})
    save(spec_of(drawing), drawing.table, tmp_path, "figure")
    assert list(csv.reader((tmp_path / "figure.csv").open())) == [["step", "a"], ["1", "3"], ["2", "4"]]


def test_rows_have_five_digits_and_no_number_where_there_is_none():
    data = rows(x=[1, 2], y=np.array([1 / 3, np.nan]), line="=<a>")
    assert list(data.values) == [{"x": 1.0, "y": 0.33333, "line": "=<a>"}, {"x": 2.0, "y": None, "line": "=<a>"}]
    assert not rows(x=[], line="a").values


def test_all_panels_are_zoomed_together_and_a_wheel_alone_scrolls_the_page():
    spec = spec_of(column_of([panel("a", []), panel("b", [])]))
    (zoom,) = (one for one in spec["params"] if one["name"].startswith("zoom"))
    named = [layer["name"] for part in spec["vconcat"] for layer in part.get("layer", ()) if "name" in layer]
    assert len(named) == 2 and set(named) <= set(zoom["views"])
    assert "ctrlKey" in zoom["select"]["zoom"]
