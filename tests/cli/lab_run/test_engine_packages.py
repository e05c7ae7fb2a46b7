"""What `sat-slime prepare engines` asks pip for."""

import importlib.util
import re
import subprocess
from pathlib import Path

from command_line import sat_slime_command

from sat_slime.cli import engine_packages
from sat_slime.cli.engine_packages import ENGINES


def test_a_dry_run_prints_every_command_and_runs_none(monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    lines = sat_slime_command("prepare", "engines", "--dry-run").stdout.splitlines()
    assert len(lines) == 2 and all(" -m pip install " in line for line in lines)
    assert lines[1].endswith(" --no-deps sglang")
    asked = " ".join(lines)
    assert all(
        engine.package in asked for engine in ENGINES if engine.package != "safetensors"
    )  # of the package itself


def test_the_torch_that_is_there_stays(monkeypatch):
    calls = []

    def run(command):
        constraints = Path(command[command.index("--constraint") + 1]).read_text()
        calls.append(re.findall(r"^torch==.*$", constraints, re.MULTILINE))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(engine_packages.importlib.metadata, "version", lambda package: "2.99.1+cu130")
    assert sat_slime_command("prepare", "engines").exit_code == 0
    assert calls == [["torch==2.99.1"]] * 2


def test_the_first_failure_ends_it(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda command: subprocess.CompletedProcess(command, 1))
    result = sat_slime_command("prepare", "engines")
    assert result.exit_code == 1 and len(result.stdout.splitlines()) == 1


def test_without_pip_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = sat_slime_command("prepare", "engines")
    assert result.exit_code == 2 and "has no pip: install it" in result.output
