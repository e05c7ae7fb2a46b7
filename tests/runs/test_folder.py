import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from sat_slime.runs.folder import RunFolder, RunFolderError, is_alive

HOLD = """
import sys
from sat_slime.runs.folder import RunFolder
folder = RunFolder(sys.argv[1])
folder.lock.take()
folder.started()
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A run folder that another process has locked."""
    RunFolder.create(tmp_path / "run", "name: run\n").lock.release()
    program = [sys.executable, "-c", HOLD, str(tmp_path / "run"), b"r\xe9sum\xe9"]  # not all of it is UTF-8
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()


def test_data_is_overwritten_on_request_alone_and_a_run_that_produced_nothing_makes_room(tmp_path, monkeypatch):
    RunFolder.create(tmp_path / "run", "name: first\n").lock.release()
    (tmp_path / "run" / "thesis.tex").touch()
    folder = RunFolder.create(tmp_path / "run", "name: run\n")
    folder.metrics.write_text('{"step": 1}\n')
    folder.lock.release()
    with pytest.raises(RunFolderError, match=r"--resume.*--name.*--overwrite"):
        RunFolder.create(folder.path, "name: other\n")
    assert folder.config.read_text() == "name: run\n" and (folder.path / "thesis.tex").exists()
    folder.metrics.unlink()
    (folder.checkpoints / "000001").mkdir()
    assert folder.has_data(), "a checkpoint counts too"
    (folder.samples / "1.jsonl").write_text("{}")
    with monkeypatch.context() as cut, pytest.raises(KeyboardInterrupt):
        cut.setattr(Path, "iterdir", lambda _: iter([folder.config, folder.samples]))
        cut.setattr("shutil.rmtree", mock.Mock(side_effect=KeyboardInterrupt))
        RunFolder.create(folder.path, "", overwrite=True)
    again = RunFolder.create(folder.path, "name: other\n", overwrite=True)
    assert not again.has_data() and list(again.samples.iterdir()) == []
    assert again.config.read_text() == "name: other\n"


@pytest.mark.parametrize("overwrite", [False, True])
def test_other_folders_are_never_touched(tmp_path, overwrite):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match="is not a run folder"):
        RunFolder.open(tmp_path)
    with pytest.raises(RunFolderError, match="not a run folder"):
        RunFolder.create(tmp_path, "", overwrite)
    with pytest.raises(RunFolderError, match="not a run folder"):
        RunFolder.create(tmp_path / "thesis.tex", "", overwrite)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_run_that_is_going_on_is_locked_even_for_overwrite(holder, tmp_path):
    for overwrite in (False, True):
        with pytest.raises(RunFolderError, match=f"in use by process {holder.pid}"):
            RunFolder.create(tmp_path / "run", "", overwrite)
    assert RunFolder(tmp_path / "run").state()["status"] == "running"


def test_a_killed_process_leaves_no_lock_and_is_called_killed(holder, tmp_path):
    assert is_alive(holder.pid, str(tmp_path)) and not is_alive(holder.pid, "/tmp/another")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert not is_alive(holder.pid, str(tmp_path))
    folder = RunFolder(tmp_path / "run")
    assert folder.state()["status"] == "killed"
    assert folder.lock.take() is None


def test_state_keeps_the_first_start_and_says_that_what_nobody_restarts_has_failed(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "")
    folder.started()
    first = folder.state()
    assert (first["status"], first["pid"]) == ("running", os.getpid())
    folder.ended("failed", "engine 0 died")
    state = json.loads(folder.state_file.read_text())
    assert (state["status"], state["error"], state["started"]) == ("failed", "engine 0 died", first["started"])
    folder.started()
    assert folder.state()["status"] == "running" and "error" not in folder.state()
    folder.ended("restarting", "a rank died")
    assert folder.state()["status"] == "restarting"
    folder.lock.release()
    assert (folder.state()["status"], folder.state()["error"]) == ("failed", "a rank died")
    folder.state_file.write_text('{"status": "runn')
    assert folder.state() == {}, "a torn one is none"


def test_a_folder_that_cannot_be_made_is_an_error_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"file/run cannot be written \(Not a directory\).*output_dir"):
        RunFolder.create(tmp_path / "file" / "run", "")
