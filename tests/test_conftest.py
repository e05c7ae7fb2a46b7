"""Which tests run by default, and which where -m asks for some, and what becomes of processes that tests leave: with
this project's own settings of pytest."""

import re
from pathlib import Path

import psutil
import pytest
from waiting import until

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


LEAVES_ONE = """
import signal, subprocess, sys

def test_leaves_one():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]).send_signal(signal.SIGSTOP)
"""


@pytest.fixture
def run_tests(pytester):
    """run_tests(source, *arguments): a session with one file of tests."""

    def run(source, *arguments):
        pytester.makepyprojecttoml((TESTS.parent / "pyproject.toml").read_text())
        tests = pytester.mkdir("tests")
        for name in ("conftest.py", "left_processes.py", "waiting.py"):
            (tests / name).write_text((TESTS / name).read_text())
        (tests / "test_some.py").write_text(source)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)

    return run


def test_a_process_that_a_test_leaves_is_ended_and_fails_it(run_tests):
    result = run_tests(LEAVES_ONE, "-vv")
    result.assert_outcomes(passed=1, errors=1)
    left = re.search(r"left running: \['(\d+) .*time.sleep\(1000\), started by .*test_leaves_one", result.stdout.str())
    pid = int(left[1])
    until(lambda: not psutil.pid_exists(pid))


@pytest.mark.parametrize(
    ("marks", "run"), [([], ["fast", "engine"]), (["-m", "slow and not engine"], ["slow"])], ids=["default", "slow"]
)
def test_slow_tests_run_only_where_the_marks_name_them(run_tests, marks, run):
    result = run_tests(FOUR_TESTS, "--collect-only", "-q", *marks)
    assert [line.partition("::test_")[2] for line in result.outlines if "::" in line] == run
