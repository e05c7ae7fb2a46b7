"""A grid on the real engines."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from waiting import assert_gone, until

from sat_slime.config.jsonl import read_rows

psutil = pytest.importorskip("psutil", reason="the lab runtime needs the engines: scripts/setup.sh")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("sglang", "megatron")),
        reason="the lab runtime needs the engines: scripts/setup.sh",
    ),
]

TINY = Path(__file__).parents[2] / "configs/lab/tiny.yaml"
CELL = "sat-gspo-r3-lag2-seed3"


@pytest.mark.timeout(1200)  # two starts of engines, on a busy machine
def test_a_cell_or_a_grid_that_was_killed_leaves_nothing_running(tmp_path, model_cache):
    """That a killed run ends bit for bit as an undisturbed one is in tests/lab/test_loop.py, and that a killed grid
    goes on in test_grid_command.py."""
    file, run, output = tmp_path / "g.yaml", tmp_path / "grids/g/runs" / CELL, tmp_path / "output.txt"
    settings = {"pipeline.iterations": 1000, "cache_dir": str(model_cache)}
    axes = {"methods": ["sat-gspo-r3"], "lags": [2], "seeds": [3]}
    grid_of_one = {"name": "g", "output_dir": str(tmp_path / "grids"), "run": str(TINY), **axes, "settings": settings}
    file.write_text(yaml.safe_dump(grid_of_one))
    command = [sys.executable, "-m", "sat_slime", "grid", str(file)]
    with output.open("w") as told:
        grid = psutil.Popen(command, stdout=told, stderr=subprocess.STDOUT)

    def below(steps: int) -> list:
        """The processes below the grid, once its cell has made so many steps."""
        until(lambda: len(read_rows(run / "metrics.jsonl")) >= steps, grid, output.read_text)
        return grid.children(recursive=True)

    processes = below(3)
    assert len(processes) >= 4, "the run, its trainer, SGLang's server and scheduler"
    grid.children()[0].kill()  # the grid takes it up again
    assert_gone(processes)
    until(lambda: "attempt 2" in output.read_text(), grid, output.read_text)
    processes = below(len(read_rows(run / "metrics.jsonl")) + 1)
    grid.kill()
    grid.wait()
    assert_gone(processes)
    # each import of SGLang's 200 models would take a server seconds
    assert "Ignore import error when loading sglang.srt.models" not in (run / "logs" / "sglang.log").read_text()
