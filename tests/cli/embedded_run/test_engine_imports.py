import sys

import pytest

from sat_slime.cli.embedded_run.engine_imports import REMEMBERED, import_errors
from sat_slime.cli.embedded_run.engine_packages import Engine


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder of packages that this Python and those that it starts can import."""
    folder = tmp_path / "site-packages"
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"open({str(tmp_path / 'log')!r}, 'a').write('{name} ')")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    return folder


TWO = (Engine("package-one", "one"), Engine("package-two", "two"))


def test_what_was_imported_is_imported_again_only_after_an_installation(packages, tmp_path):
    cache, log = tmp_path / "cache", tmp_path / "log"
    assert import_errors(TWO, cache) == ({}, False)
    assert import_errors(TWO, cache) == ({}, True)
    assert log.read_text().split() == ["one", "two"]
    (packages / "one-2.0.dist-info").mkdir()
    assert import_errors(TWO, cache) == ({}, False)
    assert import_errors(TWO[:1], cache) == ({}, False)  # others are asked for


def test_an_import_that_fails_is_told_of_its_package_and_not_remembered(packages, tmp_path):
    (packages / "one" / "__init__.py").write_text("raise RuntimeError('torn')")
    for _ in range(2):
        assert import_errors(TWO, tmp_path) == ({"package-one": "RuntimeError: torn"}, False)
    assert (tmp_path / "log").read_text().split() == ["two", "two"]
    assert not (tmp_path / REMEMBERED).exists()


def test_a_package_that_ends_the_process_hides_none_behind_it(packages, tmp_path):
    (packages / "one" / "__init__.py").write_text("import os; print('x', flush=True); os._exit(7)")
    assert import_errors(TWO, tmp_path) == ({"package-one": "exit code 7"}, False)
    assert (tmp_path / "log").read_text() == "two "


def test_what_one_needs_before_its_import_is_not_seen_by_the_others(packages, tmp_path):
    engines = (Engine("package-one", "one", "import sys; sys.modules['two'] = None"), TWO[1])
    assert import_errors(engines, tmp_path) == ({}, False)


def test_a_cache_that_cannot_be_written_stops_nothing(packages, tmp_path):
    (tmp_path / "file").write_text("")
    assert import_errors(TWO, tmp_path / "file" / "cache") == ({}, False)
