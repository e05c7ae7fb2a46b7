"""Folders that are damaged, somebody else's or hostile: commands say so in a line, and show the others."""

import os
import re
import subprocess
import sys

import pytest
from command_line import TINY, sat_slime_command
from synthetic import write_run

from sat_slime.config.jsonl import read_rows

BOMB = "x: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"x{i}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
)
CONFIGS = {
    "zeros": "\0" * 64,
    "a bell": "name: tiny\a\n",
    "a recursive alias": "model: &a {b: *a}\n",
    "aliases of aliases": BOMB,
    "merged aliases of aliases": "a0: &a0 {k: 1}\n"
    + "".join(f"a{i}: &a{i} {{l: *a{i - 1}, m: *a{i - 1}}}\n" for i in range(1, 40)),
    "no integer": "seed: !!int ''\n",
    "no yes or no": "seed: !!bool x\n",
    "no day": "seed: 2026-13-45\n",
    "no moment": "seed: !!timestamp x\n",
    "nested": "a: " + "[" * 3000,
    "nested blocks": "- " * 3000,
    "a list": "- 1\n",
    "other kinds": "name: [1]\nseed: x\nmethod: 3\npipeline: {lag: x, iterations: [y], max_staleness: z}\n",
}
STATES = ["null", "5", '"x"', "[" * 10_000, "1" * 5000, "\0\0", '{"status": 5, "last_started": 7, "pid": "x"}']
ROWS = [
    '{"step": null}',
    '{"step": "x", "iteration": "y"}',
    '{"step": 1000000000000, "iteration": 1}',
    f'{{"step": {"1" * 400}}}',
    f'{{"step": {"1" * 5000}}}',
    '{"step": NaN, "reward/mean": Infinity}',
    "[" * 10_000,
    "null",
]
READING = [("status",), ("status", "runs/tiny"), ("stop", "runs/tiny"), ("report", "runs/tiny")]
DAMAGE = [
    *(pytest.param("config.yaml", text, id=f"config with {name}") for name, text in CONFIGS.items()),
    *(pytest.param("state.json", text, id=f"state {text[:12]!r}") for text in STATES),
    *(pytest.param(file, text, id=f"{file} {text[:20]}") for file in ("metrics.jsonl", "eval.jsonl") for text in ROWS),
]


def without_traceback(*command):
    result = sat_slime_command(*command)
    assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exception)
    return result


@pytest.mark.parametrize(("file", "text"), DAMAGE)
def test_a_damaged_folder_ends_no_command_in_a_traceback_and_hides_no_other(runtime, tmp_path, file, text):
    for name in ("tiny", "whole"):
        write_run(tmp_path / "runs" / name, 6, state='{"status": "finished"}')
    with (tmp_path / "runs/tiny" / file).open("a" if file.endswith(".jsonl") else "w") as damaged:
        damaged.write(f"{text}\n")
    listed, *_ = (without_traceback(*command) for command in READING)
    assert "runs/tiny" in listed.stdout and "runs/whole" in listed.stdout


@pytest.mark.parametrize("file", ["metrics.jsonl", "eval.jsonl"])
@pytest.mark.parametrize("row", ROWS)
def test_a_damaged_row_does_not_keep_a_run_from_going_on(runtime, tmp_path, file, row):
    assert sat_slime_command("launch", TINY).exit_code == 0
    with (tmp_path / "runs/tiny" / file).open("a") as rows:
        rows.write(f"{row}\n")
    result = without_traceback("launch", "runs/tiny", "--resume", "--set", "pipeline.iterations=8")
    assert result.exit_code == 0, result.output
    assert read_rows(tmp_path / "runs/tiny/metrics.jsonl")[-1]["step"] == 8


@pytest.mark.parametrize(("name", "text"), CONFIGS.items())
def test_a_damaged_file_is_told_with_its_name_in_a_line(tmp_path, name, text):
    (tmp_path / "run.yaml").write_text(text)
    result = sat_slime_command("launch", tmp_path / "run.yaml", "--dry-run")
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert all(re.match(rf"error: {tmp_path}/run.yaml(:\d+)?: ", line) for line in result.stderr.splitlines())


def test_a_folder_that_cannot_be_written_is_a_line(monkeypatch, tmp_path):
    write_run(tmp_path / "run", 3)
    (tmp_path / "run/figures").write_text("not a folder")
    monkeypatch.chdir("/proc")  # where root cannot write either
    for command in (("init", "quickstart"), ("report", tmp_path / "run")):
        result = without_traceback(*command)
        assert result.exit_code == 2 and re.fullmatch(r"error: \S+: [\w ]+\n", result.stderr), result.output


@pytest.mark.parametrize("redirection", ["", ">&-", "2>&- >&-", "<&- >&- 2>&-"])
def test_any_locale_and_closed_streams_do(redirection, tmp_path):
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    command = f"{sys.executable} -m sat_slime methods {redirection}"
    result = subprocess.run(
        ["sh", "-c", command], env={**os.environ, **ascii_alone}, cwd=tmp_path, capture_output=True, encoding="utf-8"
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert redirection or "π / denominator" in result.stdout
