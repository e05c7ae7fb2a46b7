"""What an installation promises: the plain package needs no engine, versions agree, the scripts are whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import sat_slime

ROOT = Path(__file__).parents[1]
ENGINES = ("megatron", "ray", "sglang", "transformers")
SCRIPTS = (*sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("scripts/*.sh")), ".ci/run")

WITHOUT_ENGINES = f"""
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec
hidden = lambda name, *rest: None if name.partition(".")[0] in {ENGINES!r} else find(name, *rest)
PathFinder.find_spec = staticmethod(hidden)

import torch
from typer.testing import CliRunner
from sat_slime.cli import app
from sat_slime.objective import TokenBatch, named_method, policy_surrogate

for arguments in (["--help"], ["methods"], ["--version"], ["launch", "configs/lab/quickstart.yaml", "--dry-run"]):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0 and "sat" in done.output.lower(), (arguments, done.output)
assert "missing     megatron-core, sglang" in done.output, done.output
log_probs = torch.zeros(4, requires_grad=True)
mask = torch.ones(4, dtype=torch.bool)
batch = TokenBatch(log_probs, torch.full((4,), -0.1), torch.ones(4), mask, torch.tensor([2, 2]))
policy_surrogate(named_method("sat-grpo"), batch).values.sum().backward()
assert log_probs.grad.abs().sum() > 0
"""


def python(program: str) -> str:
    """Standard output of a program in an interpreter of its own."""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_importing_parts_imports_no_engine():
    names = "objective config rollout.stream report.run cli lab"
    parts = ", ".join(f"sat_slime.{name}" for name in names.split())
    assert python(f"import sys, {parts}; print(*({set(ENGINES)!r} & set(sys.modules)))").split() == []


def test_commands_and_the_objective_work_without_engines():
    python(WITHOUT_ENGINES)


def test_versions_agree():
    declared = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert declared and declared[1] == sat_slime.__version__


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_executable_and_parse(script):
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / script], check=True)


@pytest.mark.parametrize(
    ("refused", "message"), [("version_info", "3.10 or newer is needed"), ("ensurepip", "apt install python3-venv")]
)
def test_setup_refuses_an_interpreter_that_will_not_do(tmp_path, refused, message):
    """In a copy that has no .venv."""
    fake = tmp_path / "python3"
    fake.write_text(f'#!/bin/sh\ncase "$*" in *{refused}*) exit 1;; esac\nexec "{sys.executable}" "$@"\n')
    fake.chmod(0o755)
    for file in ("scripts/setup.sh", "requirements/constraints.txt", "pyproject.toml"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text((ROOT / file).read_text())
    env = {**os.environ, "PYTHON": str(fake)}
    done = subprocess.run(["bash", "scripts/setup.sh"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and message in done.stderr, done.stderr


def test_the_wheel_carries_what_commands_read(tmp_path):
    for name in ("sat_slime", "pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).symlink_to(ROOT / name)
    build = "import setuptools.build_meta as b; print(b.build_wheel('wheel'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "wheel" / done.stdout.split()[-1]) as wheel:
        packed = {name for name in wheel.namelist() if not name.endswith(".py") and "dist-info" not in name}
    files = {*ROOT.glob("sat_slime/configs/**/*.*")}
    assert files and {str(path.relative_to(ROOT)) for path in files} <= packed
    assert not [name for name in packed if "__pycache__" in name]
