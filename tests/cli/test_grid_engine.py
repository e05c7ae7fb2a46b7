"""A grid on the real engines."""

from __future__ import annotations

import importlib.util
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
ITERATIONS = 12


@pytest.mark.timeout(1200)  # two starts of engines, on a busy machine
def test_a_cell_that_was_killed_leaves_nothing_running_and_goes_on(tmp_path, model_cache):
    """That a killed run ends bit for bit as an undisturbed one is in tests/lab/test_loop.py, and what becomes of the
    cells of a killed grid in test_grid_command.py."""
    file, folder, output = tmp_path / "g.yaml", tmp_path / "grids/g", tmp_path / "output.txt"
    settings = {"pipeline.iterations": ITERATIONS, "cache_dir": str(model_cache)}
    axes = {"methods": ["sat-gspo-r3"], "lags": [2], "seeds": [3]}
    file.write_text(
        yaml.safe_dump({"name": "g", "output_dir": str(folder.parent), "run": str(TINY), **axes, "settings": settings})
    )
    run = folder / "runs" / "sat-gspo-r3-lag2-seed3"

    def steps() -> list[int]:
        return [row["step"] for row in read_rows(run / "metrics.jsonl")]

    with output.open("w") as told:
        grid = psutil.Popen([sys.executable, "-m", "sat_slime", "grid", str(file)], stdout=told, stderr=told)
    until(lambda: len(steps()) >= 3, grid, output.read_text)
    processes = grid.children(recursive=True)
    assert len(processes) >= 4, "the run, its trainer, SGLang's server and scheduler"
    grid.children()[0].kill()
    assert_gone(processes)
    assert len(steps()) < ITERATIONS
    assert grid.wait() == 0, output.read_text()
    assert steps() == [*range(1, ITERATIONS + 1)]
    assert (folder / "logs" / f"{run.name}.txt").read_text().count("--- ") == 2, output.read_text()
    # each import of SGLang's 200 models would take a server seconds
    assert "Ignore import error when loading sglang.srt.models" not in (run / "logs" / "sglang.log").read_text()
