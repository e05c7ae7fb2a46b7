"""Which tests run by default, and which where -m asks for some: with this project's own settings of pytest."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = Path(__file__).parent
FOUR_TESTS = """
import pytest

@pytest.mark.engine
def test_engine(): pass

@pytest.mark.engine
@pytest.mark.slow
def test_slow_engine(): pass

@pytest.mark.slow
def test_slow(): pass

def test_fast(): pass
"""


@pytest.mark.parametrize(
    ("marks", "run"),
    [
        ([], ["fast", "engine"]),
        (["-m", "not engine"], ["fast"]),
        (["-m", "engine"], ["engine"]),
        (["-m", "slow"], ["slow", "slow_engine"]),
        (["-m", "slow and not engine"], ["slow"]),
        (["-m", "engine or slow"], ["slow", "engine", "slow_engine"]),
        (["-m", "not slow"], ["fast", "engine"]),
    ],
)
def test_slow_tests_run_only_where_the_marks_name_them(pytester, marks, run):
    pytester.makepyprojecttoml((TESTS.parent / "pyproject.toml").read_text())
    tests = pytester.mkdir("tests")
    (tests / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tests / "test_four.py").write_text(FOUR_TESTS)
    result = pytester.runpytest_subprocess("--collect-only", "-q", "-p", "no:cacheprovider", *marks)
    assert [line.partition("::test_")[2] for line in result.outlines if "::" in line] == run
    if (left_out := 4 - len(run)) > 0:
        assert f"{left_out} deselected" in result.stdout.str()
