from pathlib import Path

import pytest

from sat_slime.config import base_files
from sat_slime.config.base_files import FILES, base_file
from sat_slime.config.schema import Section
from sat_slime.config.source import parse_value

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_what_the_schema_says(name):
    told = "write it with: python -m sat_slime.config.base_files"
    assert (CONFIGS / name).read_text() == base_file(FILES[name]), told


class Inner(Section):
    """A section
    with a docstring of two lines."""

    rate: float = 2.5e-7
    """A short comment."""
    count_of_things: int = 123456
    """A comment that does not fit beside it, since it goes on about what the setting means and why it is there."""


class Outer(Section):
    """The outermost section."""

    unset: int | None = None
    """Sums: `1    =`."""
    inner: Inner = Inner()
    """Of the field: not shown."""


WANTED = """\
# Head.
# Made.

unset: null  # Sums: `1    =`.

# A section with a docstring of two lines.
inner:
  rate: 2.5e-7  # A short comment.
  # A comment that does not fit beside it, since it goes on about what the setting means and why it is there.
  count_of_things: 123456
"""


def test_a_file_has_each_setting_under_its_docstring(monkeypatch):
    monkeypatch.setitem(base_files.HEADS, Outer, "Head.")
    monkeypatch.setattr(base_files, "MADE", "Made.")
    assert base_file(Outer) == WANTED


@pytest.mark.parametrize("name", FILES)
def test_no_line_is_longer_than_the_width(name):
    assert max(len(line) for line in base_file(FILES[name]).splitlines()) <= 120


@pytest.mark.parametrize("value", [1e-6, 5e-4, 0.001, 1.0, 0.0, 12.5, None, True, "flash", "~/x", [], {}, [1, 2]])
def test_values_are_read_back_as_they_were(value):
    assert parse_value(base_files.as_yaml(value)) == value


def test_the_command_writes_the_files(tmp_path, capsys):
    for name in FILES:
        (tmp_path / name).parent.mkdir()
    base_files.main(tmp_path)
    for name, model in FILES.items():
        assert (tmp_path / name).read_text() == base_file(model)
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / name) for name in FILES]
