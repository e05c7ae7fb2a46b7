"""Which tests `pytest --changed` runs: in a small repository, and that it finds its way in this one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import changed
import pytest

pytest_plugins = ["pytester"]

TESTS = Path(__file__).parent
FILES = {
    "sat_slime/__init__.py": "",
    "sat_slime/low/__init__.py": "from sat_slime.low.sums import add\n",
    "sat_slime/low/sums.py": "def add(a, b):\n    return a + b\n",
    "sat_slime/low/words.py": "",
    "sat_slime/high/__init__.py": "",
    "sat_slime/high/page.py": "def draw():\n    from sat_slime.low import add\n    return add(1, 2)\n",
    "sat_slime/high/site.py": "from sat_slime.high import page\n",
    "sat_slime/high/door.py": "from sat_slime.high.site import page\n",
    "docs/page.md": "",
    "tests/helper.py": "from sat_slime.low.words import *\n",
    "tests/test_architecture.py": "def test_always(): pass\n",
    "tests/low/test_sums.py": "from sat_slime.low import add\ndef test_sums(): pass\n",
    "tests/low/test_words.py": "import helper\ndef test_words(): pass\n",
    "tests/high/test_page.py": "NAME = 'sat_slime.high.page.draw'\ndef test_page(): pass\n",
    "tests/high/test_site.py": "DOCS = 'docs/page.md'\ndef test_site(): pass\n",
    "tests/top/test_door.py": "from sat_slime.high import door\ndef test_door(): pass\n",
    "tests/low/test_engine.py": "import pytest\n@pytest.mark.engine\ndef test_engine(): pass\ndef test_no(): pass\n",
}


def git(folder, *arguments):
    identity = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--initial-branch=main")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "-m", "files")
    return tmp_path


def chosen(repository):
    return {Path(name).stem.removeprefix("test_") for name in changed.choose(repository, "main").chosen}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("sat_slime/low/sums.py", {"sums", "page", "engine"}),
        ("sat_slime/low/words.py", {"words", "engine"}),  # through a helper
        ("sat_slime/high/page.py", {"page", "site"}),  # the test of door is three imports away
        ("sat_slime/high/site.py", {"site", "door"}),
        ("sat_slime/low/new.py", {"engine"}),
        ("tests/helper.py", {"words"}),
        ("docs/page.md", {"site"}),
    ],
)
def test_what_a_change_can_break(repository, file, expected):
    (repository / file).write_text("# changed\n")
    # a file of tests that starts engines stands on all of its part
    assert chosen(repository) == expected | {"architecture"}


def test_changes_are_those_since_the_base_committed_or_not_new_or_gone(repository):
    git(repository, "checkout", "-b", "mine")
    (repository / "sat_slime/high/site.py").unlink()
    git(repository, "commit", "-am", "one less")
    (repository / "tests/low/test_more.py").write_text("")
    assert changed.changed_files(repository, "main") == {"sat_slime/high/site.py", "tests/low/test_more.py"}
    assert chosen(repository) == {"door", "more", "architecture"}


def test_what_is_left_out_is_told(repository, monkeypatch):
    (repository / "sat_slime/low/sums.py").write_text("")
    (repository / "pyproject.toml").write_text("")
    choice = changed.choose(repository, "main")
    assert choice.left_out == {"tests/high/test_site.py", "tests/top/test_door.py"} and choice.farthest == 2
    text = "\n".join(choice.report(with_engines=False))
    assert "changed against main: pyproject.toml, sat_slime/low/sums.py" in text
    assert "left out: 2 files that stand on them farther away (high 1, top 1)" in text
    assert "tests that start engines in tests/low/test_engine.py" in text
    assert "pyproject.toml can break any test" in text
    monkeypatch.setattr(changed, "MOST", 1)
    nearer = changed.choose(repository, "main")
    assert nearer.farthest == 1 and "tests/high/test_page.py" in nearer.left_out


@pytest.mark.parametrize(("base", "error"), [("main", "nothing differs from main"), ("none", "git merge-base none")])
def test_a_base_that_is_none(repository, base, error):
    with pytest.raises(ValueError, match=error):
        changed.choose(repository, base)


def test_the_tests_of_this_repository_stand_on_what_they_are_of():
    graph = changed.uses(TESTS.parent, ())
    distance = changed.standing_on(graph, ["sat_slime/objective/quantile.py"])
    assert distance["tests/objective/test_quantile.py"] == 1 and "tests/objective/test_surrogate.py" in distance
    # A command is imported by the name that the list of commands has for it.
    assert "tests/cli/test_mistakes.py" in changed.standing_on(graph, ["sat_slime/cli/launch_command.py"])
    alone = {name for name in graph if changed.is_test(name) and not reaches_the_package(graph, name)}
    assert not [name for name in alone if Path(name).parent != Path("tests")], "they stand on nothing of ours"


def reaches_the_package(graph, name):
    seen, waiting = set(), [name]
    while waiting:
        for below in graph.get(waiting.pop(), set()) - seen:
            if below.startswith("sat_slime/"):
                return True
            seen.add(below)
            waiting.append(below)
    return False


@pytest.mark.parametrize(("marks", "run"), [([], ["always", "no", "sums"]), (["-m", "engine"], ["engine"])])
def test_pytest_runs_them_and_tells_what_it_left_out(pytester, marks, run):
    there = [name for name in FILES if not any(word in name for word in ("high", "top", "words"))]
    for name in there:
        (pytester.path / name).parent.mkdir(parents=True, exist_ok=True)
        (pytester.path / name).write_text(FILES[name])
    pytester.makepyprojecttoml((TESTS.parent / "pyproject.toml").read_text())
    for name in ("conftest.py", "changed.py", "left_processes.py", "waiting.py"):
        (pytester.path / "tests" / name).write_text((TESTS / name).read_text())
    git(pytester.path, "init", "--initial-branch=main")
    git(pytester.path, "add", "--all")
    git(pytester.path, "commit", "-m", "files")
    (pytester.path / "sat_slime/low/sums.py").write_text("def add(a, b):\n    return b + a\n")
    result = pytester.runpytest_subprocess("--changed", "-v", "-p", "no:cacheprovider", *marks)
    ran = [line.partition("::test_")[2].split()[0] for line in result.outlines if "PASSED" in line]
    assert sorted(ran) == run
    assert ("left out unless -m engine names them" in result.stdout.str()) == (not marks)
