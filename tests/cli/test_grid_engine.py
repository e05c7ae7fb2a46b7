"""A grid on the real engines: killed in the midst of its cells, it leaves nothing running and goes on."""

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
ITERATIONS = 12


@pytest.mark.timeout(1500)  # two starts of engines, on a busy machine
def test_a_grid_that_was_killed_leaves_nothing_running_and_goes_on(tmp_path, model_cache):
    """That a run which was killed ends bit for bit as an undisturbed one is in tests/lab/test_loop.py."""
    grid, folder, output = tmp_path / "g.yaml", tmp_path / "grids/g", tmp_path / "output.txt"
    settings = {"pipeline.iterations": ITERATIONS, "cache_dir": str(model_cache)}
    axes = {"methods": ["sat-gspo-r3"], "lags": [2], "seeds": [3]}
    grid.write_text(
        yaml.safe_dump({"name": "g", "output_dir": str(folder.parent), "run": str(TINY), **axes, "settings": settings})
    )
    run = folder / "runs" / "sat-gspo-r3-lag2-seed3"
    command = [sys.executable, "-m", "sat_slime", "grid", str(grid)]

    def steps() -> list[int]:
        return [row["step"] for row in read_rows(run / "metrics.jsonl")]

    with subprocess.Popen(command, stdout=output.open("a"), stderr=subprocess.STDOUT) as process:
        until(steps, process, output.read_text)
        processes = psutil.Process(process.pid).children(recursive=True)
        assert len(processes) >= 4, "the run, its trainer, SGLang's server and scheduler"
        process.kill()
    assert_gone(processes)
    assert len(steps()) < ITERATIONS
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    assert steps() == [*range(1, ITERATIONS + 1)]
    # each import of SGLang's 200 models would take a server seconds
    assert "Ignore import error when loading sglang.srt.models" not in (run / "logs/sglang.log").read_text()
