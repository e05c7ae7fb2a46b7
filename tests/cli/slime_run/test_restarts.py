"""A job that died is resumed from the newest whole checkpoint: when, how, and by the same way as --resume."""

import json
import os
import signal
import subprocess
import sys
from io import StringIO
from unittest import mock

import pytest
from command_line import sat_slime_command, settings, state
from rich.console import Console

from sat_slime.cli import slime_job
from sat_slime.cli.slime_job import Ending, Job, refusal
from sat_slime.config import ConfigError, load_config
from sat_slime.config.jsonl import read_rows
from sat_slime.launch.job_files import JobRecord

LONG_PAUSE, FAST = (
    f"from sat_slime.cli import slime_job; slime_job.FIRST_PAUSE_S = {pause}; from sat_slime.cli import main; main()"
    for pause in (600.0, 0.0)
)


@pytest.mark.parametrize(
    ("deaths", "code", "limit", "reason"),
    [
        ([5], 1, 1, None),
        ([5], 1, 0, "cluster.restarts is 0"),
        ([5, 7], 1, 1, "cluster.restarts is 1"),
        ([5], 2, 9, "its settings were refused"),
        ([0, 0], None, 9, None),
        ([0], 1, 9, "before it had trained anything"),
        # A signal is no fault of the settings, and a code that has trained is no fault of the code alone.
        ([0], -9, 9, None),
        ([0], 128 + 9, 9, None),
        ([5, 0], 1, 9, None),
        ([5, 6, 5], 1, 9, None),
        ([5, 5, 5], 1, 9, "it died 3 times after iteration 5"),
        ([0, 0, 0], -9, 9, "it died 3 times after iteration 0"),
    ],
)
def test_when_a_run_is_not_restarted(deaths, code, limit, reason):
    told = refusal(0, deaths, code, limit)
    assert told is None if reason is None else reason in told


def test_a_resumed_run_that_trains_nothing_more_is_not_restarted():
    assert "before it had trained anything" in refusal(4, [4], 1, 9)
    assert refusal(4, [5, 4], 1, 9) is None


def launch(file, *arguments):
    return sat_slime_command("launch", file, "--skip-checks", *arguments)


@pytest.fixture
def no_pause(monkeypatch):
    monkeypatch.setattr(slime_job, "FIRST_PAUSE_S", 0.0)


@pytest.mark.engine
def test_a_job_that_dies_is_resumed_and_its_restarts_are_kept(file, tmp_path, no_pause):
    run = tmp_path / "runs" / "run"
    result = launch(file, *settings('cluster.env.FAIL_AT="5"', 'cluster.env.FAIL_STARTS="1"', "cluster.restarts=3"))
    assert result.exit_code == 0, result.output
    assert "restart 1 of 3, from iteration 4, in 0 s: after iteration 5 job run-" in result.stdout
    assert "step 8/8" in result.stdout and state(run)["status"] == "finished"
    (row,) = read_rows(run / "restarts.jsonl")
    assert (row["from"], row["died_at"]) == (4, 5)
    assert "CUDA out of memory, or so" in row["reason"]
    job = json.loads((run / "job.json").read_text())
    assert job["earlier"] == [row["job"]]
    log = (run / "log.txt").read_text()
    first, second = log.index(f"--- job {row['job']}\n"), log.index(f"--- job {job['job']}\n")
    assert first < log.index("--- restart 1 of 3, from iteration 4") < second < log.index("starts at rollout 4")
    assert "restarts    after iteration 5\n" in sat_slime_command("status", run).stdout


@pytest.mark.engine
def test_what_dies_again_and_again_at_one_iteration_is_given_up(file, tmp_path, no_pause):
    run = tmp_path / "runs" / "run"
    result = launch(file, *settings('cluster.env.FAIL_AT="5"', "cluster.restarts=9"))
    assert result.exit_code == 1
    assert "not restarted: it died 3 times after iteration 5" in result.stderr.splitlines()[0]
    assert len(read_rows(run / "restarts.jsonl")) == 2
    assert state(run)["status"] == "failed" and "not restarted" in state(run)["error"]
    assert "go on with: sat-slime launch runs/run --resume" in result.stdout


@pytest.mark.engine
def test_a_restart_goes_back_past_a_damaged_checkpoint(file, tmp_path, no_pause):
    run = tmp_path / "runs" / "run"
    words = settings(
        'cluster.env.FAIL_AT="5"', 'cluster.env.FAIL_STARTS="1"', "cluster.restarts=1", 'cluster.env.DAMAGE="3"'
    )
    result = launch(file, *words)
    assert result.exit_code == 0, result.output
    assert "restart 1 of 1, from iteration 2, " in result.stdout
    assert "starts at rollout 2" in (run / "log.txt").read_text()
    assert (run / "checkpoints" / "iter_0000003.aside").is_dir()


@pytest.mark.engine
@pytest.mark.parametrize("how", ["Ctrl-C", "sat-slime stop", "sat-slime stop in the pause"])
def test_who_ends_a_run_gets_no_restart(file, tmp_path, how):
    run = tmp_path / "runs" / "run"
    in_the_pause = "pause" in how
    waits = 'cluster.env.FAIL_AT="3"' if in_the_pause else 'cluster.env.WAIT_BEFORE="3"'
    command = [sys.executable, "-c", LONG_PAUSE, "launch", str(file), "--skip-checks"]
    command += settings(waits, "cluster.restarts=9")
    sign = "restart 1 of 9" if in_the_pause else "step 3/8"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launching:
        assert any(sign in line for line in launching.stdout)
        if how == "Ctrl-C":
            launching.send_signal(signal.SIGINT)
        else:
            assert ("restarting" in sat_slime_command("status", run).stdout) == in_the_pause
            assert sat_slime_command("stop", run).exit_code == 0
        rest = launching.stdout.read()
    assert launching.returncode == 130, rest
    assert len(read_rows(run / "restarts.jsonl")) == in_the_pause
    if how == "Ctrl-C":
        sat_slime_command("stop", run)
    assert state(run)["status"] == "interrupted"
    resumed = launch(run, "--resume", *settings("cluster.env.FAIL_AT=never", "cluster.env.WAIT_BEFORE=never"))
    assert resumed.exit_code == 0, resumed.output


@pytest.mark.engine
def test_a_ray_of_the_runs_own_that_dies_is_started_anew(file, tmp_path):
    run = tmp_path / "runs" / "run"
    words = settings("cluster.address=null", "cluster.restarts=1", 'cluster.env.WAIT_BEFORE="3"')
    command = [sys.executable, "-c", FAST, "launch", str(file), "--skip-checks", "--start-ray", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launching:
        assert any("step 3/8" in line for line in launching.stdout)
        first = json.loads((run / "job.json").read_text())["ray"]
        os.kill(first["pid"], signal.SIGKILL)
        told = next(line for line in launching.stdout if "restart 1 of 1" in line)
        (tmp_path / "go").touch()
        rest = launching.stdout.read()
    assert "from iteration 2, " in told and "the Ray that was started for it ended" in told
    assert launching.returncode == 0, rest
    assert json.loads((run / "job.json").read_text())["ray"]["folder"] != first["folder"]
    assert state(run)["status"] == "finished"


@pytest.fixture
def sent(begun):
    config = load_config(begun.config, [], {"cluster.restarts": 2})
    begun.lock()
    return Job(begun, config, JobRecord("job-1", "http://10.0.0.1:8265"), mock.Mock())


DEAD = Ending("failed", "job job-1 failed with exit code 1; last in its log: X", "go on with", True, 1)


def test_a_run_that_cannot_be_resumed_says_why(monkeypatch, sent, no_pause):
    monkeypatch.setattr(slime_job, "newest_step", lambda _: {"step": 5})
    monkeypatch.setattr(slime_job, "follow", lambda *_: DEAD)
    monkeypatch.setattr(slime_job, "_send", mock.Mock(side_effect=ConfigError(["slime.prompt-data is gone"])))
    ending = slime_job.follow_and_restart(sent, slime_job.Where(), Console(file=StringIO(), width=300))
    assert ending.error == f"{DEAD.error}; its restart failed: slime.prompt-data is gone"
    assert state(sent.folder.path)["error"] == ending.error
