"""A page of a report: what stands on it, in which order, and which files stand beside it; its charts."""

import csv
import html
import json
import re
import resource

import altair as alt
import pandas as pd
import pytest

from sat_slime.report import charts
from sat_slime.report.charts import COLOURS, DASHES, bars, check_address_space, lines, looks
from sat_slime.report.page import Section, Strong, Table, check_out, write_page
from sat_slime.runs.folder import RunFolderError

HOSTILE = "</script><b onload=x>&'\""


@pytest.fixture
def text(tmp_path):
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [0.5, float("nan")], "line": HOSTILE})
    numbers = pd.DataFrame({"name": [HOSTILE, "=cmd()", "c"], "share": [0.5, 1.0, None], "kind": ["one", "two", "two"]})
    forms = {"name": "", "share": "%", "twice": lambda row: Strong(f"{2 * row['share']:g}")}
    table = Table("numbers", HOSTILE, HOSTILE, frame=numbers, forms=forms, group="kind")
    sections = [
        Section("shown", "A & B", HOSTILE, [lines("chart", frame, HOSTILE, HOSTILE, "y")]),
        Section("empty", "Nothing"),
        table,
        Section("end", "The end", sentences=[HOSTILE], text=HOSTILE, folded=True),
    ]
    return write_page(
        tmp_path / "x.html",
        sections,
        title=HOSTILE,
        subtitle=HOSTILE,
        answer=["the answer", HOSTILE],
        warnings=[HOSTILE],
        status=HOSTILE,
        command=HOSTILE,
    ).path.read_text()


def test_the_answer_comes_first_and_parts_in_their_order(text):
    places = [text.index(part) for part in ("the answer", 'id="shown"', 'id="numbers"', 'id="end"')]
    assert places == sorted(places) and 'id="empty"' not in text


def test_hostile_text_is_text_everywhere(text):
    assert "<b onload" not in text and text.count("</script>") == 2  # the chart's data, and the page's own script
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', text)
    assert {row["line"] for row in json.loads(data)["datasets"]["numbers"]} == {HOSTILE}


def test_a_page_asks_nothing_of_a_network_and_runs_its_own_script_alone(text):
    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)
    assert re.search(r"default-src 'none'; .*script-src 'sha256-[\w+/=]+'\"", html.unescape(text))


def test_a_table_has_groups_strong_cells_and_dashes_and_its_csv_the_numbers(text, tmp_path):
    assert re.findall(r'class="part"><th colspan="3">(\w+)', text) == ["one", "two"]
    assert "<td>50.0\N{NO-BREAK SPACE}%</td><td><strong>1</strong></td>" in text and "<td>–</td>" in text
    with open(tmp_path / "tables" / "numbers.csv", newline="") as file:
        assert list(csv.reader(file))[1:] == [[HOSTILE, "0.5", "one"], ["'=cmd()", "1", "two"], ["c", "", "two"]]


def test_of_many_rows_some_are_shown_evenly_and_the_first_and_last():
    table = Table("t", "", frame=pd.DataFrame({"n": range(100)}), forms={"n": "d"}, most=4)
    assert [cells for _, cells in table.rows()] == [["0"], ["33"], ["66"], ["99"]]


def test_a_report_goes_where_one_was_begun_and_over_nothing_else(tmp_path):
    check_out(tmp_path / "none")
    for name in ("figures", "tables", ".report.html.7.tmp"):
        (tmp_path / name).mkdir()
    check_out(tmp_path)
    (tmp_path / "notes.txt").touch()
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(RunFolderError, match="exists and is no report"):
            check_out(path)
    (tmp_path / "report.html").write_text("sat-slime")
    check_out(tmp_path)
    (tmp_path / "report.html").write_text("a thesis")
    with pytest.raises(RunFolderError, match="is no page of sat-slime"):
        check_out(tmp_path)


CURVE = pd.DataFrame({"x": [1, 2, 3] * 2, "y": [1.0, 0.1, None, 2, 3, 4], "line": ["a.b[c]"] * 3 + ["other"] * 3})
BAND = CURVE.assign(low=CURVE["y"] * 0.9, high=CURVE["y"] * 1.1, own=CURVE["y"])
PARTS = pd.DataFrame({"group": ["g", "g", "h"], "line": ["p", "q", "p"], "y": [1.0, -2, 3]})
PARTS = PARTS.assign(end=[3, None, 3], told=["x", None, "y"])
CHARTS = [
    lines("lines", CURVE, "t", "x", "y", log=True, levels=[0.5]),
    lines("band", BAND, "t", "x", "y", faint="own", zero=True),
    lines("points", BAND, "t", "x", "y", points=True),
    bars("bars", PARTS, "t", "y", text="told"),
]


def test_every_chart_has_its_files(tmp_path, pictures):
    for chart in CHARTS:
        chart.save(tmp_path)
        svg = (tmp_path / f"{chart.name}.svg").read_text()
        assert svg.startswith("<svg") and "currentColor" not in svg and "NaN" not in svg
        assert ('stroke-dasharray="2,2"' in svg) == (chart.name == "lines")  # its level
        assert len(pd.read_csv(tmp_path / f"{chart.name}.csv")) == len(chart.frame)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_specifications_are_vega_lites_and_single_views_as_wide_as_their_place(chart):
    spec = chart.spec()
    own = {key: value for key, value in spec.items() if key not in ("config", "datasets")}
    alt.LayerChart.from_dict(own, validate=True)
    assert spec["width"] == "container" and not {"hconcat", "vconcat", "facet"} & set(spec)
    assert len(spec["datasets"]["numbers"]) == len(chart.frame)


def test_no_two_lines_are_drawn_alike():
    names = [str(i) for i in range(len(COLOURS) * len(DASHES))]
    assert len({(colour, tuple(dash)) for colour, dash in looks(names).values()}) == len(names)


def test_long_lines_are_thinned_on_the_page_with_both_ends():
    frame = pd.DataFrame({"x": range(800), "y": [1.0, 2.0] * 400, "line": "a"})  # at lag 2
    rows = lines("long", frame, "", "x", "y").spec()["datasets"]["numbers"]
    assert len(rows) <= charts.MOST_POINTS + 1 and (rows[0]["x"], rows[-1]["x"]) == (0, 799)
    assert sum(row["y"] for row in rows) / len(rows) == pytest.approx(1.5, abs=0.01)


def test_too_little_address_space_is_a_line_with_the_remedy(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**30, 2**30))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with pytest.raises(OSError, match="ulimit -v unlimited"):
        check_address_space()
