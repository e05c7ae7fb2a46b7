"""A grid on the real engines: killed in the middle of a cell, it ends as an undisturbed one, bit for bit."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

psutil = pytest.importorskip("psutil", reason="the embedded runtime needs the engines: scripts/setup.sh")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("ray", "sglang", "megatron")),
        reason="the embedded runtime needs the engines: scripts/setup.sh",
    ),
]

ROOT = Path(__file__).parents[2]
ITERATIONS = 10
CELLS = ["gspo-lag2-seed3", "sat-gspo-r3-lag2-seed3"]


class Grid:
    """One `sat-slime grid` in a process of its own."""

    def __init__(self, root: Path, name: str) -> None:
        values = {
            "name": name,
            "output_dir": str(root / "grids"),
            "run": str(ROOT / "configs/embedded/tiny.yaml"),
            "methods": ["gspo", "sat-gspo-r3"],
            "lags": [2],
            "seeds": [3],
            "settings": {"pipeline.iterations": ITERATIONS, "cache_dir": str(root / "cache")},
        }
        (root / f"{name}.yaml").write_text(yaml.safe_dump(values))
        self.folder = root / "grids" / name
        self.output = root / f"{name}-{len(list(root.glob('*.out')))}.out"
        command = [Path(sys.executable).parent / "sat-slime", "grid", root / f"{name}.yaml", "--no-live"]
        self.process = subprocess.Popen(command, stdout=self.output.open("w"), stderr=subprocess.STDOUT)

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

    def until(self, cell: str, steps: int) -> list:
        """Waits until a cell has so many steps; returns the processes of its run, that of `launch` first."""
        deadline = time.monotonic() + 240
        while len(self.rows(cell)) < steps:
            assert self.process.poll() is None and time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.05)
        (launch,) = psutil.Process(self.process.pid).children()
        # Ray's own two agents take a minute to give up on a head that was killed; they hold nothing of the run.
        agents = ("DashboardAgent", "RuntimeEnvAgent")
        everything = [launch, *launch.children(recursive=True)]
        return [process for process in everything if not any(name in " ".join(process.cmdline()) for name in agents)]


@pytest.mark.timeout(1500)  # seven starts of engines, on a busy machine
def test_a_grid_that_lost_a_cell_an_engine_and_itself_ends_as_an_undisturbed_one(tmp_path):
    undisturbed = Grid(tmp_path, "undisturbed")
    assert undisturbed.process.wait(600) == 0, undisturbed.output.read_text()
    assert undisturbed.cells() == [(cell, "finished", 1) for cell in CELLS]

    disturbed = Grid(tmp_path, "disturbed")
    launch, *_ = disturbed.until(CELLS[0], 3)
    launch.kill()  # the cell: the grid takes it up again
    servers = [p for p in disturbed.until(CELLS[0], 6) if "engine.sglang_process" in " ".join(p.cmdline())]
    servers[0].kill()  # its engine: the run itself starts another
    processes = disturbed.until(CELLS[1], 3)
    disturbed.process.send_signal(signal.SIGKILL)
    disturbed.process.wait()
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive, [process.cmdline() for process in alive]
    assert len(disturbed.rows(CELLS[1])) < ITERATIONS
    finished = (disturbed.folder / "runs" / CELLS[0] / "metrics.jsonl").stat().st_mtime_ns

    resumed = Grid(tmp_path, "disturbed")
    assert resumed.process.wait(600) == 0, resumed.output.read_text()
    assert resumed.cells() == [(CELLS[0], "finished", 2), (CELLS[1], "finished", 1)]
    assert resumed.histories() == undisturbed.histories()
    assert (resumed.folder / "runs" / CELLS[0] / "metrics.jsonl").stat().st_mtime_ns == finished
