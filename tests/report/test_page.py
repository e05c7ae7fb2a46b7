"""A page of a report: what stands on it, in which order, and which files stand beside it."""

import csv
import html
import json
import re

import pandas as pd
import pytest

from sat_slime.report.charts import lines
from sat_slime.report.page import Section, Strong, Table, check_out, write_page
from sat_slime.runs.folder import RunFolderError

HOSTILE = "</script><b onload=x>&'\""


@pytest.fixture
def text(tmp_path):
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [0.5, float("nan")], "line": HOSTILE})
    numbers = pd.DataFrame({"name": [HOSTILE, "=cmd()", "c"], "share": [0.5, 1.0, None], "kind": ["one", "two", "two"]})
    forms = {"name": "", "share": "%", "twice": lambda row: Strong(f"{2 * row['share']:g}")}
    table = Table("numbers", HOSTILE, HOSTILE, numbers, forms, group="kind")
    sections = [
        Section("shown", "A & B", HOSTILE, [lines("chart", frame, HOSTILE, HOSTILE, "y")]),
        Section("empty", "Nothing"),
        Section("table", "T", table=table),
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
    places = [text.index(part) for part in ("the answer", 'id="shown"', 'id="table"', 'id="end"')]
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
    table = Table("t", "", "", pd.DataFrame({"n": range(100)}), {"n": "d"}, most=4)
    assert [cells for _, cells in table.rows()] == [["0"], ["33"], ["66"], ["99"]]


def test_a_report_goes_where_one_was_begun_and_over_nothing_else(tmp_path):
    check_out(tmp_path / "none")
    (tmp_path / "figures").mkdir()
    (tmp_path / "tables").mkdir()
    check_out(tmp_path)
    (tmp_path / "notes.txt").touch()
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(RunFolderError, match="exists and is no report"):
            check_out(path)
    (tmp_path / "report.html").touch()
    check_out(tmp_path)
