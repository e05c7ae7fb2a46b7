"""What the first launch of configs/slime/laptop.yaml makes."""

import pytest
from command_line import LAPTOP, sat_slime_command, settings

FILES = ("checkpoint", "weights", "data", "model")
"""What the lines about files are of."""


def lines_of(*arguments):
    """(mark, what, rest) of each line of `check`, those about files alone."""
    result = sat_slime_command("check", LAPTOP, *settings(*arguments))
    rows = [line.split(maxsplit=2) for line in result.stdout.splitlines()]
    return [tuple(row) for row in rows if len(row) == 3 and (row[1] in FILES or row[1] == "laptop")]


def test_check_does_not_miss_what_the_first_launch_makes(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".cache" / "sat_slime" / "laptop"
    made = ("OK", "laptop", f"{folder}, with model and prompts, is made at the first launch")
    assert lines_of() == [made]
    dry = sat_slime_command("launch", LAPTOP, "--dry-run")
    assert "cluster.slime_dir" in dry.stderr, "it looked at this machine"
    assert "download" not in dry.stderr and "prepare model" not in dry.stderr and str(folder) not in dry.stderr
    # what it does not make has to be there
    (mark, what, rest), *more = lines_of(f"slime.eval-prompt-data=[mine, {folder}/mine.jsonl]")[1:]
    assert (mark, what, more) == (
        "FAIL",
        "data",
        [],
    ) and f"slime.eval-prompt-data (mine) is {folder}/mine.jsonl" in rest
    # and once something is there, nothing is made
    (folder / "model").mkdir(parents=True)
    assert made not in (told := lines_of()) and [what for mark, what, _ in told if mark == "FAIL"].count("data") == 2


@pytest.mark.parametrize(
    "own",
    [
        "slime.hf-checkpoint=/mine/qwen",
        "slime.prompt-data=/mine/p.jsonl",
        "slime.custom-rm-path=my.reward",
    ],
)
def test_paths_of_ones_own_are_looked_for(monkeypatch, tmp_path, own):
    monkeypatch.setenv("HOME", str(tmp_path))
    told = lines_of(own)
    assert not any(what == "laptop" for _, what, _ in told)
    assert {what for mark, what, _ in told if mark == "FAIL"} == {"checkpoint", "weights", "data"}
