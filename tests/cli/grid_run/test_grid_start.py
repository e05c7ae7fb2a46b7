"""How a cell of a grid is started: forked where there is a fork server, else by a command that ends with the grid; and
a grid that is asked to end meanwhile."""

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from synthetic import write_run

from sat_slime.cli import fork_servers, grid_run
from sat_slime.cli.grid_plan import GridPlan
from sat_slime.config import GridConfig, LabConfig
from sat_slime.grid.state import GridFolder
from sat_slime.lab.forking import FOLDER, RUNS, ForkedProcess, listen
from sat_slime.rollout import sglang_on_gpu
from sat_slime.rollout.scratch import new_scratch
from sat_slime.runs.folder import RunFolder

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="fork servers need Linux")

SERVER = """
import os, sys
from sat_slime.lab.forking import serve
if serve(int(sys.argv[1])):
    print("forked", *sys.argv, os.environ["GREETING"])
"""


@pytest.fixture
def server(monkeypatch):
    """The folder of a fork server of runs that prints what it is given."""
    monkeypatch.setenv("GREETING", "hello")
    scratch = new_scratch()
    with listen(scratch.path / RUNS) as listener:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(listener.fileno())], stdin=subprocess.PIPE, pass_fds=(listener.fileno(),)
        )
    yield scratch.path
    process.communicate()
    scratch.remove()


def start(environment, tmp_path, *arguments):
    """The process of a cell, ended, and what it printed."""
    with open(tmp_path / "output.txt", "ab") as output:
        process = grid_run.Cells(SimpleNamespace(), environment=environment).start(arguments, output)
    assert process.wait() == 0
    return process, (tmp_path / "output.txt").read_text()


def test_a_cell_is_forked_where_there_is_a_fork_server(server, tmp_path):
    process, output = start({FOLDER: str(server)}, tmp_path, "launch", "cell.yaml")
    assert isinstance(process, ForkedProcess)
    assert output == "forked sat-slime launch cell.yaml hello\n"


@pytest.mark.parametrize("environment", [{}, {FOLDER: "/nowhere"}], ids=["none", "dead"])
def test_a_cell_without_a_fork_server_is_the_command(environment, tmp_path):
    process, output = start(environment, tmp_path, "methods", "sat-gspo")
    assert isinstance(process, subprocess.Popen) and "sat-gspo  SAT-GSPO" in output


@pytest.mark.parametrize("what", [(sys, "platform", "darwin"), (sglang_on_gpu, "gpu_available", lambda: True)])
def test_there_are_none_where_no_process_can_be_forked(what, monkeypatch, tmp_path):
    monkeypatch.setattr(*what)
    with fork_servers.fork_servers(tmp_path / "log.txt") as environment:
        assert environment == {}
    assert not (tmp_path / "log.txt").exists()


def test_runs_of_slime_and_a_cell_alone_are_not_forked():
    for run, cells in ((None, 2), (LabConfig(), 1), (LabConfig(), 0)):
        with grid_run._forking(SimpleNamespace(run=run), cells) as environment:
            assert environment == {}


class Waiting:
    """Cells whose start waits for imports while Ctrl-C is pressed."""

    starts, error = 0, AssertionError("the start went on")

    def __init__(self, folder):
        self.folder = folder

    def arguments(self, state):
        return ["launch"]

    def start(self, arguments, output):
        self.starts += 1
        signal.raise_signal(signal.SIGINT)
        raise self.error

    def refreshed(self, state):
        return self.folder.run_folder(state.cell)


class Broken(Waiting):
    """Cells whose start fails, and Ctrl-C while the grid then ends."""

    def start(self, arguments, output):
        raise OSError("no more processes")


@pytest.fixture
def begun(tmp_path):
    """A function that returns the run of a grid of two cells, and their states, with cells of a class."""

    def begin(kind):
        folder, grid = GridFolder(tmp_path / "grid"), GridConfig(methods=["grpo", "gspo"], lags=[1], seeds=[0])
        folder.path.mkdir()
        states = folder.begin(grid, LabConfig())
        configs = {state.cell: LabConfig() for state in states}
        plan = GridPlan(grid.model_copy(update={"parallel": 2}), folder, LabConfig(), configs, [*configs], ())
        return grid_run.GridRun(plan, states, states, kind(folder), Console(quiet=True)), states

    return begin


def test_ctrl_c_after_a_start_that_failed_hides_nothing(begun, monkeypatch):
    run, _ = begun(Broken)
    saved = []
    monkeypatch.setattr(run.folder, "save", lambda states: (signal.raise_signal(signal.SIGINT), saved.append(states)))
    with pytest.raises(OSError, match="no more processes"):
        run.run()
    assert saved


def test_ctrl_c_ends_a_start_that_waits(begun):
    run, states = begun(Waiting)
    handler = signal.getsignal(signal.SIGINT)
    run.run()
    assert run.cells.starts == 1 and [state.state for state in states] == ["planned", "planned"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_what_is_said_of_a_collapse_is_of_the_first_data_set(tmp_path):
    """Two that stay where they are, one at 0.9 and one at 0.1, beside a mismatch that rises."""
    folder = write_run(tmp_path / "run", 40, lag=1)
    rows = [
        {"step": step, "iteration": step, "dataset": name, "accuracy": accuracy, "n_samples": 999}
        for step in range(0, 200, 8)
        for name, accuracy in (("aime", 0.9), ("math", 0.1))
    ]
    metrics = [{"step": step, "mismatch/d_pi": 0.01 if step < 80 else 0.5} for step in range(1, 200)]
    (folder / "eval.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in metrics))
    assert grid_run.collapse_note(RunFolder(folder)) is None
    mixed = [{**row, "dataset": None, "accuracy": 0.9 if row["step"] < 80 else 0.1} for row in rows]
    (folder / "eval.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in mixed))
    assert "meets the collapse rule" in grid_run.collapse_note(RunFolder(folder))
