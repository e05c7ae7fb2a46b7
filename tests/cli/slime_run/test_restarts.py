"""Whether and how a job that died is sent again; on a real Ray in test_job_start.py."""

import shutil
import time
from io import StringIO
from unittest import mock

import pytest
from command_line import sat_slime_command, state
from rich.console import Console

from sat_slime.cli import slime_run
from sat_slime.cli.slime_run import Ending, Job, refusal
from sat_slime.config import ConfigError, load_config
from sat_slime.config.jsonl import read_rows
from sat_slime.launch.job_files import JobRecord
from sat_slime.launch.ray_jobs import JobState
from sat_slime.runs.folder import RunFolder


@pytest.mark.parametrize(
    ("began", "deaths", "code", "limit", "reason"),
    [
        (0, [5], 1, 1, None),
        (0, [5], 1, 0, "cluster.restarts is 0"),
        (0, [5, 7], 1, 1, "cluster.restarts is 1"),
        (0, [5], 2, 9, "its settings were refused"),
        (0, [0, 0], None, 9, None),
        (0, [0], 1, 9, "before it had trained anything"),
        (4, [4], 1, 9, "before it had trained anything"),
        (4, [5, 4], 1, 9, None),
        # A signal is no fault of the settings, and a code that has trained is no fault of the code alone.
        (0, [0], -9, 9, None),
        (0, [0], 128 + 9, 9, None),
        (0, [5, 0], 1, 9, None),
        (0, [5, 6, 5], 1, 9, None),
        (0, [5, 5, 5], 1, 9, "it died 3 times after iteration 5"),
        (0, [0, 0, 0], -9, 9, "it died 3 times after iteration 0"),
    ],
)
def test_when_a_run_is_not_restarted(began, deaths, code, limit, reason):
    told = refusal(began, deaths, code, limit)
    assert told is None if reason is None else reason in told


DEAD = Ending("failed", "job job-1 failed with exit code 1; last in its log: X", "go on with", True, 1)


@pytest.fixture
def followed(begun, monkeypatch):
    """A run whose jobs die again and again after iteration 5: followed to its end, through its restarts."""
    config = load_config(begun.config, [], {"cluster.restarts": 9})
    job = Job(begun, config, JobRecord.read(begun.path), server=None)
    begun.lock.take()
    monkeypatch.setattr(slime_run, "follow", lambda *_: DEAD)
    monkeypatch.setattr(slime_run, "_send", lambda *_, **__: job)
    monkeypatch.setattr(slime_run, "FIRST_PAUSE_S", 0.0)
    return lambda: slime_run.follow_and_restart(job, slime_run.Where(), Console(file=StringIO(), width=300))


def test_what_dies_again_and_again_at_one_iteration_is_given_up(begun, followed):
    ending = followed()
    assert ending.status == "failed"
    assert ending.error == f"{DEAD.error}; not restarted: it died 3 times after iteration 5"
    rows = read_rows(begun.restarts)
    assert [(row["from"], row["died_at"]) for row in rows] == [(4, 5)] * 2
    assert state(begun.path)["error"] == ending.error


def test_a_run_that_cannot_be_resumed_says_why(begun, followed, monkeypatch):
    def refuses(*_, **__):  # its Ray is started, and its cluster checked, meanwhile
        raise ConfigError(f"slime.prompt-data of a {RunFolder(begun.path).state()['status']} run is gone")

    monkeypatch.setattr(slime_run, "_send", refuses)
    assert followed().error == f"{DEAD.error}; its restart failed: slime.prompt-data of a restarting run is gone"
    assert state(begun.path)["status"] == "failed"
    shutil.rmtree(begun.checkpoints)
    begun.metrics.write_text('{"step": 20}\n')
    assert "is its disk mounted?" in followed().error and read_rows(begun.metrics)
    begun.checkpoints.mkdir()
    assert "is its disk mounted?" in followed().error
    begun.metrics.write_text('{"step": 8}\n')  # whose checkpoint was not written any more
    monkeypatch.undo()
    slime_run.going_back.refuse_lost(begun.path, load_config(begun.config), begun.checkpoints)


def test_a_full_disk_hides_no_end_and_leaves_no_ray(begun, followed, monkeypatch):
    monkeypatch.setattr(begun, "ended", mock.Mock(side_effect=OSError(28, "No space left on device")))
    assert followed().error.startswith(f"{DEAD.error}; its restart failed: {begun.path} cannot be written (No space")
    monkeypatch.setattr(slime_run, "_end_ray", ended := mock.Mock())
    record, state = JobRecord("job-1", "", mock.Mock()), JobState("FAILED", None, "its disk is full")
    ending = slime_run._end(Job(begun, load_config(begun.config), record, None, state), Console(file=StringIO()))
    assert ending.error == "job job-1 failed: its disk is full" and ended.called


def test_a_stop_in_the_pause_before_a_restart_ends_the_run(begun, followed, monkeypatch):
    told = []

    def from_another_terminal(_):
        told.extend(sat_slime_command(command, begun.path).stdout for command in ("status", "stop"))

    monkeypatch.setattr(slime_run, "FIRST_PAUSE_S", 600.0)
    monkeypatch.setattr(slime_run, "time", mock.Mock(sleep=from_another_terminal, monotonic=time.monotonic))
    ending = followed()
    assert (ending.status, ending.error, state(begun.path)["status"]) == ("interrupted", None, "interrupted")
    assert "state       restarting" in told[0] and "it will not be restarted" in told[1]
