"""A mistake is answered in one screen: with what is wrong and what to write instead, before anything starts."""

import re
import shlex
import subprocess

import mistakes
import pytest
from typer.testing import CliRunner

from sat_slime.cli import app

GROUPS = ("COMMAND_LINE", "VALUES", "PATHS", "RUNS", "TOGETHER", "SLIME")


def run(words):
    """The command's exit code and what it says, in one line."""
    said = CliRunner().invoke(app, words, env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert said.exception is None or isinstance(said.exception, SystemExit), (words, said.exception)
    return said.exit_code, said.output


@pytest.mark.usefixtures("runtime")
def test_every_mistake_is_answered():
    """One test, since all of them start from the same files."""
    for line in mistakes.FILES:
        if line.startswith("sat-slime"):
            assert run(shlex.split(line)[1:])[0] == 0, line
        else:
            subprocess.run(line, shell=True, check=True)
    for group in GROUPS:
        for line in getattr(mistakes, group):
            command, *expected = line.split(" | ")
            code, said = run(shlex.split(command))
            assert code in (1, 2) and len(said.splitlines()) <= 8, (command, code, said)
            assert re.search(r"^(error:|FAIL|Usage:)", said, re.M) and "Traceback" not in said, (command, said)
            assert not [word for word in expected if word not in said], (command, said)
