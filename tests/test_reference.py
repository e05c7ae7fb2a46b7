"""The pages below docs/reference are those that the code writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field
from reference.markdown import linked, page, table
from reference.pages import PAGES
from reference.settings import in_words

from sat_slime.config.section import PositiveFloat, PositiveInt

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
WRITTEN_BY_HAND = {"README.md", "api.md"}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_the_codes(name):
    """`./scripts/generate.sh` writes these pages."""
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name]()


def test_no_other_page_is_there():
    assert {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.md")} == {*PAGES, *WRITTEN_BY_HAND}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (PositiveInt, "integer > 0"),
        (PositiveInt | None, "integer > 0"),
        (Annotated[float, Field(ge=0, lt=1)], "number ≥ 0 and < 1"),
        (Annotated[PositiveFloat | None, Field()], "number > 0"),
        (Literal["a", "b"] | None, "`a`, `b`"),
        (list[PositiveInt] | None, "list of integer > 0"),
        (dict[str, str], "mapping"),
        (bool | int, "true or false or integer"),
    ],
)
def test_a_type_in_words(kind, words):
    assert in_words(kind) == words


def test_tables_and_links():
    assert table(["a", "b"], [["x|y", "two\n lines"]]) == "| a | b |\n| --- | --- |\n| x\\|y | two lines |"
    assert table(["a"], []) == ""
    assert page("Title", "First.", "", "Last.").startswith("# Title\n\n<!--")
    assert linked("see [that](asynchrony.md#x) (docs/grid.md)", "../") == (
        "see [that](../asynchrony.md#x) ([grid](../grid.md))"
    )
