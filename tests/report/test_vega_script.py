"""The script of a page's figures: made once, kept whole, made anew where what is kept is not it."""

from __future__ import annotations

import pytest
import vl_convert

from sat_slime.report import vega_script

MADE = "/* made */\nlet a = 'ä'\n"


@pytest.fixture
def made(monkeypatch, tmp_path):
    """How often the script was made; it is kept in a folder that is not there yet."""
    calls: list[int] = []
    monkeypatch.setattr(vega_script, "KEPT", tmp_path / "cache" / "vega.js")
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda: calls.append(1) or MADE)
    vega_script.vega_script.cache_clear()
    yield calls
    vega_script.vega_script.cache_clear()


def _again() -> str:
    vega_script.vega_script.cache_clear()  # as another process
    return vega_script.vega_script()


def test_made_once_for_all_processes(made):
    assert [_again() for _ in range(3)] == [MADE] * 3
    assert len(made) == 1


@pytest.mark.parametrize("damage", [lambda text: text[:-3], lambda text: text.replace("made", "mad3"), lambda _: ""])
def test_one_that_is_damaged_is_made_anew(made, damage):
    _again()
    vega_script.KEPT.write_text(damage(vega_script.KEPT.read_text(encoding="utf-8")), encoding="utf-8")
    assert _again() == MADE and len(made) == 2
    assert _again() == MADE and len(made) == 2


def test_a_page_is_made_where_nothing_can_be_kept(made, tmp_path):
    (tmp_path / "cache").write_text("no folder")
    assert _again() == MADE
