"""A grid on the real engines: forked, and killed in the midst of its cells, it ends as cells of their own processes do,
bit for bit."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
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


# Ray's own two agents take a minute to give up on a head that was killed; they hold nothing of the run.
AGENTS = ("DashboardAgent", "RuntimeEnvAgent")
FORK_SERVERS = {"runs": "cli.fork_servers", "sglang": "sglang_process --fork-server"}


class Grid:
    """One `sat-slime grid` in a process of its own."""

    def __init__(self, root: Path, name: str, *options: str, parallel: int = 1) -> None:
        """parallel: with 1 the second cell has not begun when the first one is disturbed."""
        values = {
            "name": name,
            "output_dir": str(root / "grids"),
            "run": str(ROOT / "configs/lab/tiny.yaml"),
            "methods": ["gspo", "sat-gspo-r3"],
            "lags": [2],
            "seeds": [3],
            "parallel": parallel,
            "settings": {"pipeline.iterations": ITERATIONS, "cache_dir": str(root / "cache")},
        }
        (root / f"{name}.yaml").write_text(yaml.safe_dump(values))
        self.folder = root / "grids" / name
        self.output = root / f"{name}-{len(list(root.glob('*.out')))}.out"
        command = [Path(sys.executable).parent / "sat-slime", "grid", root / f"{name}.yaml", *options]
        # Cells give themselves a name, for which `ps` has room only where the environment's is free for it.
        env = {key: value for key, value in os.environ.items() if key != "SPT_NOENV" and not key.startswith("RAY_")}
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

    def until(self, cell: str, steps: int) -> Processes:
        """Waits until a cell has so many steps; returns what runs of the grid then."""
        until(lambda: len(self.rows(cell)) >= steps, self.process, self.output.read_text)
        return Processes(psutil.Process(self.process.pid).children(recursive=True), cell)


class Processes:
    """The processes below a grid."""

    def __init__(self, found: list[psutil.Process], cell: str) -> None:
        self.lines = {}
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):  # one that has ended meanwhile
                self.lines[process] = " ".join(process.cmdline())
        self.cell = cell

    def __iter__(self):
        return iter(p for p, line in self.lines.items() if not any(agent in line for agent in AGENTS))

    def of(self, words: str) -> psutil.Process:
        """The process with these words in its command line; of several the one that began first."""
        return min((p for p in self if words in self.lines[p]), key=lambda process: process.create_time())

    @property
    def launcher(self) -> psutil.Process:
        return self.of(f"{self.cell}.yaml")

    @property
    def server(self) -> psutil.Process:
        """SGLang's server: below the fork server where there is one."""
        if not any(FORK_SERVERS["sglang"] in line for line in self.lines.values()):
            return self.of("lab.sglang_process")
        forked = self.of(FORK_SERVERS["sglang"]).children()
        return next(process for process in forked if process.status() != psutil.STATUS_ZOMBIE)


@pytest.fixture(scope="module")
def root(tmp_path_factory, model_cache) -> Path:
    root = tmp_path_factory.mktemp("grids")
    (root / "cache").symlink_to(model_cache)
    return root


@pytest.fixture(scope="module")
def undisturbed(root) -> Grid:
    """Both cells in processes of their own: a cell alone is not forked."""
    for method in ("gspo", "sat-gspo-r3"):
        undisturbed = Grid(root, "undisturbed", "--only", method)
        assert undisturbed.process.wait() == 0, undisturbed.output.read_text()
    assert undisturbed.cells() == [(cell, "finished", 1) for cell in CELLS]
    assert not (undisturbed.folder / "logs/fork-servers.txt").exists()
    return undisturbed


@pytest.mark.timeout(1500)  # eight starts of engines, on a busy machine
def test_a_forked_grid_that_was_killed_everywhere_ends_as_cells_in_processes_of_their_own(root, undisturbed):
    disturbed = Grid(root, "disturbed")
    processes = disturbed.until(CELLS[0], 3)
    assert all(processes.of(words).is_running() for words in FORK_SERVERS.values())
    for name in ("sglang::scheduler", "sat-slime-trainer", f"sat-slime launch {disturbed.folder}"):
        assert any(line.startswith(name) for line in processes.lines.values()), f"{name}, as `ps` shows it"
    processes.launcher.kill()  # the cell: the grid takes it up again
    disturbed.until(CELLS[0], 6).server.kill()  # its engine: the run itself starts another
    disturbed.until(CELLS[1], 2).of(FORK_SERVERS["runs"]).kill()  # what forked the cell: the grid does without
    processes = disturbed.until(CELLS[1], 5)
    disturbed.process.send_signal(signal.SIGKILL)
    disturbed.process.wait()
    assert_gone(processes)
    assert len(disturbed.rows(CELLS[1])) < ITERATIONS
    finished = (disturbed.folder / "runs" / CELLS[0] / "metrics.jsonl").stat().st_mtime_ns

    resumed = Grid(root, "disturbed")
    assert resumed.process.wait() == 0, resumed.output.read_text()
    each_lost_its_launcher_once = [(cell, "finished", 2) for cell in CELLS]
    assert resumed.cells() == each_lost_its_launcher_once, resumed.output.read_text()
    assert resumed.histories() == undisturbed.histories()
    servers = [*undisturbed.folder.glob("runs/*/logs/sglang-0.log"), *resumed.folder.glob("runs/*/logs/sglang-0.log")]
    assert len(servers) == 4
    for log in servers:  # each import of SGLang's 200 models would take a server seconds
        assert "Ignore import error when loading sglang.srt.models" not in log.read_text()
    assert (resumed.folder / "runs" / CELLS[0] / "metrics.jsonl").stat().st_mtime_ns == finished
