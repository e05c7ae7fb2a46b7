"""A grid on the real engines: killed in the midst of its cells, it ends as an undisturbed one does, bit for bit."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from waiting import assert_gone, until

psutil = pytest.importorskip("psutil", reason="the lab runtime needs the engines: scripts/setup.sh")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("sglang", "megatron")),
        reason="the lab runtime needs the engines: scripts/setup.sh",
    ),
]

ROOT = Path(__file__).parents[2]
ITERATIONS = 10
CELLS = ["gspo-lag2-seed3", "sat-gspo-r3-lag2-seed3"]


class Grid:
    """One `sat-slime grid` in a process of its own."""

    def __init__(self, root: Path, name: str) -> None:
        """One cell after the other: the second has not begun when the first one is disturbed."""
        values = {
            "name": name,
            "output_dir": str(root / "grids"),
            "run": str(ROOT / "configs/lab/tiny.yaml"),
            "methods": ["gspo", "sat-gspo-r3"],
            "lags": [2],
            "seeds": [3],
            "parallel": 1,
            "settings": {"pipeline.iterations": ITERATIONS, "cache_dir": str(root / "cache")},
        }
        (root / f"{name}.yaml").write_text(yaml.safe_dump(values))
        self.folder, self.output = root / "grids" / name, root / f"{name}-{len(list(root.glob('*.out')))}.out"
        command = [sys.executable, "-m", "sat_slime", "grid", str(root / f"{name}.yaml")]
        env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        self.process = subprocess.Popen(command, stdout=self.output.open("w"), stderr=subprocess.STDOUT, env=env)

    def rows(self, cell: str, file: str = "metrics") -> list[dict]:
        """Whole rows, without what depends on the clock."""
        path = self.folder / "runs" / cell / f"{file}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        return [{k: v for k, v in row.items() if not k.startswith(("time/", "rollout/"))} for row in rows]

    def histories(self) -> list[list[dict]]:
        return [self.rows(cell, file) for cell in CELLS for file in ("metrics", "eval", "histograms")]

    def cells(self) -> list[tuple]:
        cells = json.loads((self.folder / "state.json").read_text())["cells"]
        return [(row["cell"], row["state"], row["attempts"]) for row in cells]

    def until(self, cell: str, steps: int) -> dict[psutil.Process, str]:
        """Waits until a cell has so many steps; returns what runs below the grid then, with its command line."""
        until(lambda: len(self.rows(cell)) >= steps, self.process, self.output.read_text)
        lines = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # one that has ended meanwhile
                lines[process] = " ".join(process.cmdline())
        return lines


def kill(processes: dict[psutil.Process, str], words: str) -> None:
    """Kills the process with these words in its command line; of several the one that began first."""
    min((one for one in processes if words in processes[one]), key=lambda process: process.create_time()).kill()


@pytest.mark.timeout(1500)  # seven starts of engines, on a busy machine
def test_a_grid_that_was_killed_everywhere_ends_as_an_undisturbed_one(tmp_path, model_cache):
    (tmp_path / "cache").symlink_to(model_cache)
    undisturbed = Grid(tmp_path, "undisturbed")
    assert undisturbed.process.wait() == 0, undisturbed.output.read_text()
    assert undisturbed.cells() == [(cell, "finished", 1) for cell in CELLS]

    disturbed = Grid(tmp_path, "disturbed")
    kill(disturbed.until(CELLS[0], 3), f"launch {disturbed.folder}")  # the cell: the grid takes it up again
    kill(disturbed.until(CELLS[0], 6), "lab.sglang_process")  # its engine: the run itself starts another
    processes = disturbed.until(CELLS[1], 5)
    disturbed.process.kill()
    disturbed.process.wait()
    assert_gone(processes)
    assert len(disturbed.rows(CELLS[1])) < ITERATIONS
    finished = (disturbed.folder / "runs" / CELLS[0] / "metrics.jsonl").stat().st_mtime_ns

    resumed = Grid(tmp_path, "disturbed")
    assert resumed.process.wait() == 0, resumed.output.read_text()
    assert resumed.cells() == [(CELLS[0], "finished", 2), (CELLS[1], "finished", 1)], resumed.output.read_text()
    assert resumed.histories() == undisturbed.histories()
    assert (resumed.folder / "runs" / CELLS[0] / "metrics.jsonl").stat().st_mtime_ns == finished
    logs = [*tmp_path.glob("grids/*/runs/*/logs/sglang-0.log")]
    assert len(logs) == 4
    for log in logs:  # each import of SGLang's 200 models would take a server seconds
        assert "Ignore import error when loading sglang.srt.models" not in log.read_text()
