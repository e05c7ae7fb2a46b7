"""A page of a report: what stands on it, in which order, and which files stand beside it."""

import re

import pytest
from test_drawing import panel

from sat_slime.report.drawing import column_of
from sat_slime.report.page import Figure, Page, Sheet, check_out, warning_box
from sat_slime.runs.folder import RunFolderError


def test_contents_name_what_stands_on_the_page_in_its_order(tmp_path):
    page = Page(tmp_path)
    assert page.figure(Figure("shown", "A & B", "what it shows", lambda: column_of([panel("</script><b>", [])])))
    assert not page.figure(Figure("empty", "Nothing", "", lambda: None))
    page.add("<p>in between</p>")
    page.sheet(Sheet("table", "T", "how it is read", ["method"], [["<b>"]]))
    page.section("end", "The end", "<p>of it</p>")
    text = page.write("x.html", title="<title>", subtitle="sub", summary=["one", "two"]).read_text()
    assert re.findall(r'<a href="#(\w+)">([^<]+)</a>', text) == [
        ("shown", "A &amp; B"),
        ("table", "T"),
        ("end", "The end"),
    ]
    assert re.findall(r'<(?:figure|section) id="(\w+)"', text) == ["shown", "table", "end"]
    assert text.index('id="shown"') < text.index("in between") < text.index('id="table"')
    assert "<b>" not in text and text.count("</script>") == 2 and "<h1>&lt;title&gt;</h1>" in text
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")) == [
        *(f"figures/shown.{kind}" for kind in ("csv", "png", "svg")),
        "tables/table.csv",
        "x.html",
    ]


def test_a_box_of_no_warnings_is_none():
    assert warning_box([]) == ""
    assert warning_box(["1 < 2"]) == '<ul class="warnings"><li>1 &lt; 2</li></ul>'


def test_a_report_goes_where_one_was_begun_and_over_nothing_else(tmp_path):
    check_out(tmp_path / "none")
    (tmp_path / "figures").mkdir()
    (tmp_path / "tables").mkdir()
    check_out(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(RunFolderError, match="exists and is no report"):
        check_out(tmp_path)
    with pytest.raises(RunFolderError, match="exists and is no report"):
        check_out(tmp_path / "notes.txt")
    (tmp_path / "report.html").touch()
    check_out(tmp_path)


def test_long_words_wrap_and_numbers_do_not():
    text = Sheet(
        "t", "", "", ["", "best", "changes"], [["GRPO", "65.5 [53.5, 77.5] (128)", "a setting and " * 4]]
    ).as_html()
    assert "<td>65.5 [53.5, 77.5] (128)</td>" in text and '<td class="long">a setting' in text
