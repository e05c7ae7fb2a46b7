import os
import signal
import subprocess
import sys

import pytest
from command_line import DENSE, sat_slime_command

from sat_slime.launch.job_files import JobRecord
from sat_slime.launch.local_ray import LocalRay


@pytest.mark.parametrize("command", ["logs", "stop"])
def test_folders_that_hold_no_job(command, tmp_path):
    assert "is not a run folder" in sat_slime_command(command, tmp_path).stderr
    (tmp_path / "config.yaml").write_text(f"runtime: slime\nextends: {DENSE}\n")
    (tmp_path / "state.json").write_text("{}")
    result = sat_slime_command(command, tmp_path)
    assert result.exit_code == 2 and "the run was never sent to a cluster" in result.stderr


def test_the_view_of_a_run_on_slime_is_its_log(tmp_path):
    (tmp_path / "config.yaml").write_text(f"extends: {DENSE}\n")
    (tmp_path / "state.json").write_text("{}")
    result = sat_slime_command("status", tmp_path, "--follow")
    assert result.exit_code == 2 and f"of a run on slime: sat-slime logs {tmp_path} --follow" in result.stderr


@pytest.mark.parametrize("alone", [True, False], ids=["status RUN", "the list"])
def test_a_run_whose_ray_was_killed_with_all_else_is_dead(begun, tmp_path, alone):
    """kill -9 leaves state.json as it was. A stand-in for Ray has its folder on its command line, as Ray has."""
    folder = tmp_path / "ray"
    folder.mkdir()
    ray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(folder)])
    try:
        begun.started("job-1")
        JobRecord("job-1", "http://127.0.0.1:1", LocalRay("http://127.0.0.1:1", ray.pid, str(folder))).write(begun.path)
        assert begun.state()["status"] == "running"
    finally:
        os.kill(ray.pid, signal.SIGKILL)
        ray.wait()
    shown = sat_slime_command("status", begun.path if alone else tmp_path).stdout
    words = ("state       failed", "its process", "was killed") if alone else ("killed",)
    assert all(word in shown for word in words) and "running" not in shown, shown
