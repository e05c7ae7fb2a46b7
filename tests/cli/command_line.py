"""What the tests of the command share: how they call it, and the files that they call it with."""

import json
from pathlib import Path

from typer.testing import CliRunner

from sat_slime.cli import app

ROOT = Path(__file__).parents[2]
TINY = ROOT / "configs" / "lab" / "tiny.yaml"
PAPER = ROOT / "configs" / "paper" / "qwen3-30b-a3b.yaml"
DENSE = ROOT / "configs" / "models" / "qwen3-4b.yaml"
LAPTOP = ROOT / "configs" / "slime" / "laptop.yaml"
STAND_IN = ROOT / "tests" / "plugin" / "stand_in"
"""What stands for slime's and for Megatron's checkout."""


def sat_slime_command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "300"})


def settings(*pairs):
    """Each `key=value` behind a --set."""
    return [word for pair in pairs for word in ("--set", pair)]


def state(folder):
    return json.loads((Path(folder) / "state.json").read_text())
