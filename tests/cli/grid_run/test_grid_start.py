"""How a cell of a grid is started: forked where there is a fork server, else by a command that ends with the grid."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from sat_slime.cli.grid_run import fork_servers, grid_start
from sat_slime.cli.grid_run.cells import Cells
from sat_slime.config import LabConfig
from sat_slime.lab.forking.fork_server import listen
from sat_slime.lab.forking.forked_process import FOLDER, RUNS, ForkedProcess
from sat_slime.rollout.scratch import new_scratch

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="fork servers need Linux")

SERVER = """
import os, sys
from sat_slime.lab.forking.fork_server import serve
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
        process = Cells(SimpleNamespace(), environment=environment).start(arguments, output)
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


@pytest.mark.parametrize("reason", ["no Linux", "GPU"])
def test_there_are_none_where_no_process_can_be_forked(reason, monkeypatch, tmp_path):

    if reason == "GPU":
        monkeypatch.setattr(fork_servers, "gpu_available", lambda: True)
    else:
        monkeypatch.delattr(os, "pidfd_open")
    with fork_servers.fork_servers(tmp_path / "log.txt") as environment:
        assert environment == {}
    assert not (tmp_path / "log.txt").exists()


def test_runs_of_slime_and_a_cell_alone_are_not_forked():
    for run, cells in ((None, 2), (LabConfig(), 1), (LabConfig(), 0)):
        with grid_start._forking(SimpleNamespace(run=run), cells) as environment:
            assert environment == {}
