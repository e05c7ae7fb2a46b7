"""A lab run from another terminal: a process that holds its folder stands for the run."""

import errno
import json
import os
import signal
import subprocess
import sys
from unittest import mock

import pytest
from command_line import sat_slime_command

from sat_slime.cli import lab_run
from sat_slime.cli.terminal import sigterm_as_ctrl_c, undisturbed
from sat_slime.config import GridConfig, LabConfig, dump_config
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.grid import GridFolder

HOLDER = """
import signal, sys, time
from pathlib import Path
from sat_slime.runs.folder import RunFolder
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
held = RunFolder(sys.argv[1])
held.lock.take()
held.started()
print("held", flush=True)
wanted = int(sys.argv[2])
while len(asked) < wanted:
    time.sleep(0.01)
held.ended("interrupted")
"""


def hold(path, signals=1):
    """A process that works on a folder, of a run or of a grid, until it has had so many SIGTERM."""
    command = [sys.executable, "-c", HOLDER, str(path), str(signals)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr("sat_slime.cli.lab_run.missing_engines", lambda: [])
    folder = RunFolder.create(tmp_path / "runs/one", dump_config(LabConfig()))
    folder.lock.release()
    folder.log.write_text(
        "2026-11-22 10:00:00 DEBUG   not for the view\n"
        "2026-11-22 10:00:01 INFO    checkpoint of iteration 2 saved\n"
        "2026-11-22 10:00:02 WARNING it is late\n"
    )
    return folder


def test_a_log_is_followed_to_the_end_of_the_run(run, monkeypatch):
    process, before = hold(run.path), run.log.read_text()

    def add(_):
        with run.log.open("a") as file:
            file.write("2026-11-22 10:00:03 INFO    later\n")
        process.send_signal(signal.SIGTERM)
        process.wait()

    monkeypatch.setattr(lab_run, "time", mock.Mock(sleep=add))
    shown = sat_slime_command("status", run.path, "--follow").stdout
    assert shown.startswith(before) and "\n2026-11-22 10:00:03 INFO    later\nrun         " in shown


@pytest.mark.parametrize(("options", "signals"), [((), 1), (("--now",), 2)])
def test_a_run_is_stopped_as_by_ctrl_c(run, options, signals):
    process = hold(run.path, signals)
    result = sat_slime_command("stop", run.path, *options)
    assert result.exit_code == 0 and "one: stopped" in result.stdout
    assert ("at once: --now" in result.stdout) == (signals == 1)
    assert process.wait() == 0 and run.state()["status"] == "interrupted"
    assert "nothing runs here" in sat_slime_command("stop", run.path).stdout


@pytest.mark.parametrize(
    ("note", "named"),
    [
        ({"machine": "another", "host": "node-7"}, "process {} on node-7, in another container"),
        ({"started": "1"}, "process"),
        ({"pid": "x"}, "process"),
        (None, "that its lock does not name"),
        ("4711", "that its lock does not name"),
    ],
)
def test_a_process_elsewhere_is_told_and_no_stranger_of_its_number_is_ended(run, note, named):
    process, stranger = hold(run.path), subprocess.Popen(["sleep", "60"])
    try:
        lock = run.path / ".lock"
        here = json.loads(lock.read_text()) | {"pid": stranger.pid}
        lock.write_text(note or "" if not isinstance(note, dict) else json.dumps(here | note))
        result = sat_slime_command("stop", run.path)
        assert result.exit_code == 2 and "cannot be ended from here" in result.stderr
        assert named.format(stranger.pid) in result.stderr
        assert stranger.poll() is None and process.poll() is None
    finally:
        for child in (process, stranger):
            child.kill()
            child.wait()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_that_cannot_lock_is_not_in_use(run, monkeypatch, number):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    assert "nothing runs here" in sat_slime_command("stop", run.path).stdout
    result = sat_slime_command("launch", run.path, "--resume", "--set", "pipeline.iterations=400")
    assert result.exit_code == 2
    assert "file system does not lock files" in result.stderr and "in use" not in result.stderr


def test_a_grid_is_stopped_too(tmp_path):
    grid = GridFolder(tmp_path / "grids/g")
    with grid.held(GridConfig(name="g"), LabConfig()):
        pass
    process, cell = hold(grid.path), RunFolder(grid.runs / "cell")
    cell.path.mkdir(parents=True)
    cell.started("job-1")
    told = sat_slime_command("stop", grid.path).stdout
    assert "g: stopped" in told and f"job-1 goes on: stop it with sat-slime stop {cell.path}\n" in told
    assert process.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_interrupt_what_ends_processes(number):
    done = []
    with sigterm_as_ctrl_c():
        with undisturbed():
            os.kill(os.getpid(), number)
            done.append("ended")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert done == ["ended"]
