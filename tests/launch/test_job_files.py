import json
import os
import subprocess
import sys
from unittest import mock

import psutil
import pytest
from waiting import assert_gone, until

from sat_slime.config import SlimeConfig
from sat_slime.launch import job_log
from sat_slime.launch.command import SlimeCommand
from sat_slime.launch.job_files import HEAD, JobRecord, Tail, submit
from sat_slime.launch.local_ray import LocalRay
from sat_slime.launch.ray_jobs import JobError, JobServer

CONFIG = SlimeConfig(name="run")
SENT = SlimeCommand(["python3", "-m", "driver"], {"A": "1"}, {})
THESIS = {"job": "a", "address": "http://h:1", "ray": {"address": "http://h:1", "pid": 1, "folder": "/home/a/thesis"}}


@pytest.fixture
def server():
    return mock.create_autospec(JobServer, instance=True, address="http://10.0.0.1:8265")


def logged(log, program, **environment):
    """What the job's command, a Python program, and its log say."""
    command = [sys.executable, "-m", job_log.__name__, str(log), sys.executable, "-uc", program]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    return ended.returncode, ended.stdout


@pytest.mark.parametrize(
    "program, code, text",
    [
        ("import sys; print('a'); print('b', file=sys.stderr); sys.exit(3)", 3, "a\nb\n"),
        ("import os; os.write(1, b'no end \\xff'); os.kill(os.getpid(), 9)", 128 + 9, "no end \ufffd\n"),
        ("print('login 0123456789abcdef')", 0, "login <WANDB_API_KEY>\n"),
    ],
)
def test_what_a_command_says_is_in_the_log_without_secrets(tmp_path, program, code, text):
    log = tmp_path / "log.txt"
    log.write_text("--- job 1\n")
    assert logged(log, program, WANDB_API_KEY="0123456789abcdef") == (code, text)
    assert log.read_text() == "--- job 1\n" + text


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
def test_a_command_ends_with_the_process_that_writes_its_log(tmp_path):
    program = "import os, time; print(os.getpid()); time.sleep(600)"
    log = tmp_path / "log.txt"
    writer = subprocess.Popen([sys.executable, "-m", job_log.__name__, str(log), sys.executable, "-uc", program])
    until(lambda: log.exists() and log.read_text().endswith("\n"), writer)
    driver = psutil.Process(int(log.read_text()))
    writer.kill()
    writer.wait()
    assert_gone([driver])


def test_a_log_that_cannot_be_written_and_a_process_that_is_left_end_no_job(tmp_path):
    sleeper = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    program = f"import subprocess, sys; print({sleeper}.pid); sys.exit(4)"
    code, said = logged(tmp_path / "nowhere" / "log.txt", program)
    left = psutil.Process(int(said))
    assert code == 4 and left.is_running()  # nobody waited for it
    left.kill()


def test_each_job_has_its_own_part_whose_whole_lines_are_told_once(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text(f"{HEAD}job-1\na\n{HEAD}job-10\nb\n\nhal")
    tail = Tail.of_job(log, "job-10")
    assert list(tail.lines()) == ["b", ""]
    with log.open("a") as file:
        file.write("f\n")
    assert (list(tail.lines()), list(tail.lines())) == (["half"], [])
    assert list(Tail.of_job(log, "job-2").lines()) == list(Tail.of_job(tmp_path / "none", "job-1").lines()) == []


def test_a_job_is_on_record_and_heads_its_part_of_the_log(tmp_path, server):
    ray = LocalRay("http://127.0.0.1:1", 7, "/tmp/sat_slime-0123abc_")
    first, second = submit(server, SENT, tmp_path, CONFIG), submit(server, SENT, tmp_path, CONFIG, ray)
    assert JobRecord.read(tmp_path) == second and (second.ray, second.address) == (ray, server.address)
    command, *others = server.submit.call_args_list[0].args
    assert command[-3:] == SENT.command and others == [SENT.env, first.job, {"sat_slime_run": str(tmp_path)}]
    assert (tmp_path / "log.txt").read_text() == f"{HEAD}{first.job}\n{HEAD}{second.job}\n"
    server.submit.side_effect = JobError("no")
    with pytest.raises(JobError):
        submit(server, SENT, tmp_path, CONFIG)
    assert JobRecord.read(tmp_path).job not in (first.job, second.job), "that it was refused may be a mistake"


@pytest.mark.parametrize("record", [None, [], {"job": "a"}, {"job": "a", "address": "module://h:1"}, THESIS])
def test_a_damaged_record_is_named_and_one_of_a_stranger_deletes_and_imports_nothing(tmp_path, record):
    (tmp_path / "job.json").write_text(json.dumps(record) if record is not None else "{")
    with pytest.raises(JobError, match=r"job\.json cannot be read"):
        JobRecord.read(tmp_path)
