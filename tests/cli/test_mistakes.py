"""docs/common-errors.md: what it says of each command is what the command says. As a script it writes the answers."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from stand_in_runtime import FakeRuntime
from typer.testing import CliRunner

from sat_slime.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "common-errors.md"


def run(line):
    """The command's exit code and what it says."""
    said = CliRunner().invoke(app, shlex.split(line)[1:], env={"COLUMNS": "100", "NO_COLOR": "1"})
    assert said.exception is None or isinstance(said.exception, SystemExit), (line, said.exception)
    return said.exit_code, "\n".join(text.rstrip() for text in said.output.strip().splitlines())


def prepare(page):
    """Makes the files that the page names, in the working directory."""
    for line in re.search(r"```bash\n(.*?)```", page, re.DOTALL)[1].splitlines():
        if line.startswith("sat-slime"):
            assert (said := run(line))[0] == 0, (line, said)
        else:
            subprocess.run(line, shell=True, check=True)


def answered(page):
    """The page with the answers that its commands have now."""
    prepare(page)

    def block(found):
        lines = [line for line in found[1].splitlines() if line.startswith("$ sat-slime")]
        answers = []
        for line in lines:
            code, answer = run(line.removeprefix("$ "))
            assert code in (1, 2), (line, code, answer)
            answers.append(f"{line}\n{answer}\n")
        return "```console\n" + "\n".join(answers) + "```"

    return re.sub(r"```console\n(.*?)```", block, page, flags=re.DOTALL)


@pytest.mark.usefixtures("runtime")
def test_every_mistake_is_answered_as_the_page_says():
    page = PAGE.read_text()
    assert answered(page) == page
    assert page.count("\n$ ") >= 75


def test_no_answer_is_a_traceback_or_a_wall():
    for answer in re.findall(r"^\$ .*\n((?:.+\n)+)", PAGE.read_text(), re.M):
        assert "Traceback" not in answer and len(answer.splitlines()) <= 8
        assert re.search(r"^(error:|FAIL|Usage:)", answer, re.M), answer


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        FakeRuntime().stand_in(patch)
        patch.chdir(folder)
        made = answered(PAGE.read_text())
    PAGE.write_text(made)
