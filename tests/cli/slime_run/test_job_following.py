"""The job of a run of slime, by its log."""

from io import StringIO
from unittest import mock

import pytest
from command_line import PAPER
from rich.console import Console

from sat_slime.cli.slime_run.job_following import Show, follow
from sat_slime.config import load_config
from sat_slime.launch.job_files import JobRecord
from sat_slime.launch.ray_jobs import JobError, JobServer, JobState
from sat_slime.runs.live_view import RunView


def test_an_evaluation_is_told_with_what_was_trained_before_it():
    told = StringIO()
    config = load_config(PAPER)
    show, view = Show(config), RunView("run", 8, Console(file=told, width=200), live=False)
    for line in ("eval 0: {'eval/aime24': 0.1}", "step 0: {'train/step': 0}", "eval 0: {'eval/aime24': 0.2}"):
        show.read(line, view)
    evaluations = [line for line in told.getvalue().splitlines() if line.startswith("eval")]
    assert evaluations == ["eval before training: aime24 0.100", "eval after iteration 1: aime24 0.200"]


@pytest.mark.parametrize(
    ("ends", "status"),
    [(JobState("STOPPED"), "interrupted"), (KeyboardInterrupt(), "interrupted"), (JobError("gone"), "failed")],
)
def test_how_a_job_was_followed_to_its_end_is_the_runs_status(begun, ends, status):
    server = mock.create_autospec(JobServer, instance=True)
    server.follow.return_value = iter(["all well\n"])
    server.state.side_effect = [ends]
    record = JobRecord("job-1", "http://127.0.0.1:1")
    ending = follow(begun, load_config(begun.config), record, server, False, Console(file=StringIO()))
    assert ending.status == status
