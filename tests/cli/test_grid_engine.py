"""A grid on the real engines: killed in the midst of its cells, it leaves nothing running and goes on."""

from __future__ import annotations

import importlib.util
import os
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
ITERATIONS = 10
CELLS = ["gspo-lag2-seed3", "sat-gspo-r3-lag2-seed3"]


@pytest.mark.timeout(1500)  # four starts of engines, on a busy machine
def test_a_grid_that_was_killed_leaves_nothing_running_and_goes_on(tmp_path, model_cache):
    """That a run which was killed ends bit for bit as an undisturbed one is in tests/lab/test_loop.py."""
    grid, folder, output = tmp_path / "g.yaml", tmp_path / "grids/g", tmp_path / "output.txt"
    settings = {"pipeline.iterations": ITERATIONS, "cache_dir": str(model_cache)}
    axes = {"methods": ["gspo", "sat-gspo-r3"], "lags": [2], "seeds": [3], "parallel": 1}
    grid.write_text(
        yaml.safe_dump({"name": "g", "output_dir": str(folder.parent), "run": str(TINY), **axes, "settings": settings})
    )

    def start() -> subprocess.Popen:
        command = [sys.executable, "-m", "sat_slime", "grid", str(grid)]
        env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        return subprocess.Popen(command, stdout=output.open("a"), stderr=subprocess.STDOUT, env=env)

    def steps(cell: str) -> list[int]:
        return [row["step"] for row in read_rows(folder / "runs" / cell / "metrics.jsonl")]

    def below(process: subprocess.Popen, cell: str, made: int) -> list:
        """The processes below a grid, once a cell has made so many steps."""
        until(lambda: len(steps(cell)) >= made, process, output.read_text)
        return psutil.Process(process.pid).children(recursive=True)

    process = start()
    processes = below(process, CELLS[0], 3)
    psutil.Process(process.pid).children()[0].kill()  # the cell: the grid takes it up again
    assert_gone(processes)
    processes = below(process, CELLS[1], 5)
    assert len(processes) >= 4, "the run, its trainer, SGLang's server and scheduler"
    process.kill()
    process.wait()
    assert_gone(processes)
    assert len(steps(CELLS[1])) < ITERATIONS
    finished = (folder / "runs" / CELLS[0] / "metrics.jsonl").stat().st_mtime_ns

    assert start().wait() == 0, output.read_text()
    assert (folder / "logs" / f"{CELLS[0]}.txt").read_text().count("--- ") == 2, output.read_text()
    assert [steps(cell) for cell in CELLS] == [[*range(1, ITERATIONS + 1)]] * 2
    assert (folder / "runs" / CELLS[0] / "metrics.jsonl").stat().st_mtime_ns == finished
    logs = [*folder.glob("runs/*/logs/sglang.log")]
    assert len(logs) == 2
    for log in logs:  # each import of SGLang's 200 models would take a server seconds
        assert "Ignore import error when loading sglang.srt.models" not in log.read_text()
