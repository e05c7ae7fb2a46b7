from __future__ import annotations

from pathlib import Path

import pytest

from sat_slime.objective.markdown import TABLES, with_tables

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_the_documents_are_those_of_the_code(name: str) -> None:
    """`./scripts/generate.sh` writes these tables."""
    text = (DOCS / name).read_text(encoding="utf-8")
    assert with_tables(text, TABLES[name]) == text


def test_a_file_without_the_place_of_a_table_is_told() -> None:
    with pytest.raises(ValueError, match="there is no place for the table 'methods'"):
        with_tables("# A page\n", TABLES["objective.md"])
