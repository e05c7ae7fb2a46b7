"""Tests run the whole slime on a CPU: `pytest tests/slime_whole --slime DIR --megatron DIR` (docs/rehearse.md)."""

import subprocess
from pathlib import Path

import pytest
from whole_run import COMMAND, Slime, environment


@pytest.fixture(scope="session")
def slime(request, tmp_path_factory):
    """The checkouts that the command line names, with a model and prompts that are made for these tests."""
    folders = {name: request.config.getoption(f"--{name}") for name in ("slime", "megatron")}
    if missing := [f"--{name} DIR" for name, folder in folders.items() if not folder]:
        pytest.skip(f"needs the real slime and its Megatron-LM: {' '.join(missing)}")
    laptop = tmp_path_factory.mktemp("laptop") / "files"
    subprocess.run([*COMMAND, "prepare", "laptop", "--out", str(laptop)], check=True, env=environment())
    places = {name: Path(folder).absolute() for name, folder in folders.items()}
    return Slime(places["slime"], places["megatron"], laptop, tmp_path_factory.mktemp("runs"))
