"""The job of a run of slime, by its log and from any terminal, without a cluster."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from unittest import mock

import pytest
import yaml
from command_line import DENSE, sat_slime_command
from rich.console import Console

from sat_slime.cli import slime_run
from sat_slime.cli.grid_run import GridRun, arguments, plan_grid
from sat_slime.cli.slime_run import Job, follow
from sat_slime.cli.terminal import BAD_INPUT
from sat_slime.config import ConfigError, load_config
from sat_slime.launch.job_files import JobRecord
from sat_slime.launch.local_ray import LocalRay
from sat_slime.launch.ray_jobs import JobError, JobServer, JobState
from sat_slime.runs.folder import RunFolder

OWN_RAY = LocalRay("http://127.0.0.1:1", 1, "/tmp/none")


@pytest.mark.parametrize(
    ("ends", "ray", "status", "told"),
    [
        (JobState("STOPPED"), None, "interrupted", "go on with: sat-slime launch run --resume"),
        (KeyboardInterrupt(), None, "interrupted", "the job goes on; follow it with: sat-slime status run -f"),
        (JobError("gone"), None, "failed", "the job itself may well go on"),
        (
            JobError("gone"),
            OWN_RAY,
            "failed",
            "Ray's own logs are in run/logs\ngo on with: sat-slime launch run --resume --start-ray",
        ),
    ],
)
def test_how_a_job_was_followed_to_its_end_is_the_runs_status(begun, monkeypatch, ends, ray, status, told):
    monkeypatch.setattr(slime_run, "how_it_died", lambda _: "its Ray was killed")
    monkeypatch.setattr(slime_run, "stop_ray", lambda *_, **__: True)
    server = mock.create_autospec(JobServer, instance=True)
    server.state.side_effect = [ends] if isinstance(ends, KeyboardInterrupt) else [ends] * 9
    monkeypatch.setattr(slime_run, "RECONNECT_AFTER_S", 0.0)
    job = Job(begun, load_config(begun.config), JobRecord("job-1", "http://127.0.0.1:1", ray), server)
    ending = follow(job, Console(file=StringIO()))
    assert ending.status == status and told in ending.text
    assert ending.ended == (isinstance(ends, JobState) or ray is not None)
    assert ray is None or ("its Ray was killed" in ending.error and begun.state()["status"] == "failed")


@pytest.mark.parametrize("ray", [None, LocalRay("http://127.0.0.1:1", 1, "/tmp/sat_slime-01234567")])
def test_a_run_whose_cluster_is_gone_is_lost_until_it_is_resumed(begun, ray, monkeypatch):
    replace(JobRecord.read(begun.path), ray=ray).write(begun.path)
    begun.lock.path.write_text('{"host": "another", "machine": "another"}')  # where that Ray may well go on
    begun.started("job-1")
    shown = sat_slime_command("status", begun.path).stdout
    assert "state       lost (job job-1 at http://127.0.0.1:1, which does not answer)" in shown
    with monkeypatch.context() as patched:  # this machine has a Ray at its own address, which knows no such job
        patched.setattr(slime_run, "JobServer", lambda _: mock.Mock(state=lambda _: None))
        assert "state       lost" in sat_slime_command("status", begun.path).stdout
    stopped = sat_slime_command("stop", begun.path)
    assert stopped.exit_code == 2 and "the cluster at http://127.0.0.1:1 does not answer" in stopped.stderr
    assert sat_slime_command("launch", begun.path, "--resume", "--dry-run", "--skip-checks").exit_code == 0


def test_stop_ends_no_job_by_a_copy_and_hides_no_failure(begun, tmp_path, monkeypatch):
    server = mock.create_autospec(JobServer, instance=True)
    monkeypatch.setattr(slime_run, "JobServer", lambda address: server)
    server.state.return_value = server.stop.return_value = JobState("RUNNING")
    stopped = sat_slime_command("stop", shutil.copytree(begun.path, tmp_path / "copy"))
    assert stopped.exit_code == 2 and "end that: sat-slime stop run\n" in stopped.stderr, stopped.output
    assert not server.stop.called and not begun.stop_mark.exists()
    server.state.return_value = JobState("FAILED", None, "the head node was full")
    JobRecord("job-2", "http://127.0.0.1:1").write(begun.path)  # its launch was killed as it sent the job
    with mock.patch.object(RunFolder, "ended", side_effect=OSError(30, "Read-only file system")):
        assert "error       job job-2 failed: the head" in sat_slime_command("status", begun.path).stdout
    stopped = sat_slime_command("stop", begun.path)
    assert stopped.stdout == "run: its job job-2 has ended already (failed)\n"
    assert begun.state()["error"] == "job job-2 failed: the head node was full"


def test_folders_that_hold_no_job(tmp_path):
    assert "is not a run folder" in sat_slime_command("stop", tmp_path).stderr
    (tmp_path / "config.yaml").write_text(f"runtime: slime\nextends: {DENSE}\n")
    (tmp_path / "state.json").write_text("{}")
    result = sat_slime_command("stop", tmp_path)
    assert result.exit_code == 2 and "the run was never sent to a cluster" in result.stderr


@pytest.mark.parametrize("alone", [True, False], ids=["status RUN", "the list"])
def test_a_run_whose_ray_was_killed_with_all_else_is_dead(begun, tmp_path, alone):
    """kill -9 leaves state.json as it was. A stand-in for Ray has its folder on its command line, as Ray has."""
    folder = tmp_path / "sat_slime-01234567"
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


def test_status_follows_a_job_that_goes_on_and_then_says_how_it_ended(begun, monkeypatch):
    """Of its rows the newest is shown first, a torn one once it is whole; a cluster that is away comes back."""
    score = '{"step": 8, "dataset": "aime24", "accuracy": 0.25, "n_samples": 30}\n'
    written = [
        ((begun.log, "--- job job-1\nstep 6: {'train/loss': 0.5}\n"), (begun.metrics, '{"step": 6}\n{"step"')),
        ((begun.metrics, ": 7}\n"), (begun.log, "torch.OutOfMemoryError: CUDA out of memory.\n")),
        ((begun.eval, score),),
    ]
    states = [JobState("RUNNING"), JobState("RUNNING"), JobError("away"), JobState("SUCCEEDED", 0)]

    def state(_):
        if 0 < len(states) < 4:
            for file, text in written.pop(0):
                with file.open("a") as rows:
                    rows.write(text)
        answer = states.pop(0) if states else JobState("SUCCEEDED", 0)
        if isinstance(answer, JobError):
            raise answer
        return answer

    server = mock.create_autospec(JobServer, instance=True)
    server.state.side_effect = state
    monkeypatch.setattr(slime_run, "JobServer", lambda address: server)
    monkeypatch.setattr(slime_run, "POLL_S", 0.0)
    monkeypatch.setattr(slime_run, "RECONNECT_AFTER_S", 0.0)
    begun.started("job-1")
    shown = sat_slime_command("status", begun.path, "--follow").stdout
    told = ("step 5/8", "step 6/8", "warning: away", "warning: torch.Out", "step 7/8", "eval at step 8: aime24")
    lines = shown.splitlines()[: len(told)]
    assert [line.startswith(start) for line, start in zip(lines, told, strict=True)] == [True] * len(told), shown
    assert "state       finished (job job-1" in shown and "progress    step 7 of 8" in shown
    begun.started("job-1")
    os.utime(begun.log, (2**31, 2**31))  # when the job wrote last, which nobody followed
    assert "ended 2038-01-19T" in sat_slime_command("status", begun.path).stdout
    begun.started("job-1")
    sent = JobRecord("job-2", "http://127.0.0.1:1")  # while its cluster is asked for the old job
    server.state.side_effect = lambda _: sent.write(begun.path) or begun.started("job-2") or JobState("FAILED")
    sat_slime_command("status", begun.path)
    assert (begun.state()["status"], begun.state()["job"]) == ("running", "job-2")
    JobRecord("job-2", "http://127.0.0.1:1", LocalRay("", 1, "/tmp/sat_slime-01234567")).write(begun.path)
    monkeypatch.setattr(slime_run, "is_running", lambda _: True)
    monkeypatch.setattr(slime_run, "stop_ray", stopped := mock.Mock())
    server.state.side_effect = lambda _: JobState("SUCCEEDED", 0)
    assert "Ray         started for this run, and still" in sat_slime_command("status", begun.path).stdout
    assert not stopped.called and "and still there" not in sat_slime_command("status", begun.path, "-f").stdout
    assert stopped.call_count == 1, "as by the launch that follows its job"
    copy = shutil.copytree(begun.path, "copy")
    assert "and still there" in sat_slime_command("status", copy, "-f").stdout and stopped.call_count == 1
    server.address = "http://127.0.0.1:1"
    launched = sat_slime_command("launch", begun.config, "--overwrite", "--skip-checks", "--detach")
    assert launched.exit_code == 0 and stopped.call_count == 2, "the record of the new job no longer names it"
    server.state.side_effect = lambda job: JobState("RUNNING" if job == "job-2" else "FAILED")
    monkeypatch.setattr(slime_run, "_cluster", lambda *_: sent.write(begun.path) or (server, None))
    launched = sat_slime_command("launch", begun.config, "--overwrite", "--skip-checks", "--detach")
    assert "its job job-2 is running" in launched.stderr, "sent by another launch while this one checked the cluster"


def test_the_command_of_a_grids_cell_depends_on_its_job(settings_of_a_run, monkeypatch):
    Path("run.yaml").write_text(yaml.safe_dump(settings_of_a_run))
    grid = {"name": "small", "run": "run.yaml", "methods": ["gspo"], "seeds": [7]}
    Path("grid.yaml").write_text(yaml.safe_dump(grid))
    plan = plan_grid(Path("grid.yaml"), options=["--skip-checks"])
    saves_nothing = plan_grid(Path("grid.yaml"), overrides=["slime.save-interval=0", "slime.save=/x"])
    with pytest.raises(ConfigError, match=r"slime\.save is /x for 2 cells"):
        plan_grid(Path("grid.yaml"), overrides=["slime.save=/x"])
    cell = plan.wanted[0]
    with plan.folder.held(plan.grid, plan.run):
        pass
    first = arguments(plan, cell)
    assert first == ["launch", "grids/small/cells/gspo-lag1-seed7.yaml", "--skip-checks"]
    assert sat_slime_command(*first, "--dry-run").exit_code == 0
    run = RunFolder.create("grids/small/runs/gspo-lag1-seed7", Path(first[1]).read_text())
    run.lock.release()
    run.started("a-job")
    assert arguments(plan, cell) == ["status", str(run.path), "--follow"]
    JobRecord("a-job", "http://127.0.0.1:1").write(run.path)
    assert arguments(plan, cell) == first, "a cluster that is gone has no job to follow"
    going = GridRun(plan, Console(file=StringIO()))
    going._end(cell, BAD_INPUT)
    assert cell in going.failed, "why its launch was refused is told, and not that the lost job may go on"
    with run.claimed():  # another process took it as it was to start
        (other := GridRun(plan, Console(file=StringIO())))._end(cell, BAD_INPUT)
        assert not other.failed and cell in other.waiting
    run.lock.release()
    JobRecord("a-job", "http://127.0.0.1:1", LocalRay("", 1, "/tmp/sat_slime-01234567")).write(run.path)
    monkeypatch.setattr(slime_run, "JobServer", lambda _: mock.Mock(state=lambda _: JobState("SUCCEEDED", 0)))
    monkeypatch.setattr(slime_run, "is_running", lambda _: True)
    monkeypatch.setattr(slime_run, "stop_ray", stopped := mock.Mock())
    going._start(cell)
    assert stopped.called and not going.running, "it ended between two calls of the grid"
    run.started("a-job")
    assert "goes on" not in sat_slime_command("stop", plan.folder.path).stdout, "it has ended, unseen"
    run.ended("failed", "no GPU")
    assert arguments(plan, cell) == first
    run.metrics.write_text('{"step": 1}\n')
    assert arguments(saves_nothing, cell) == ["launch", str(run.path), "--resume-from", "0"]
    (run.checkpoints / "latest_checkpointed_iteration.txt").write_text("1")
    assert arguments(plan, cell) == ["launch", str(run.path), "--resume", "--skip-checks"]
