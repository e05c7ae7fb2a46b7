import json

import pytest

from sat_slime.config import SlimeConfig
from sat_slime.launch import job_files
from sat_slime.launch.job_files import JobLog, JobRecord, submit
from sat_slime.launch.local_ray import LocalRay
from sat_slime.launch.ray_jobs import JobError

CONFIG = SlimeConfig(name="run")
GONE = JobError("gone")


class FakeServer:
    """A job server whose log comes in given pieces; an exception among them breaks the connection at that place."""

    address = "http://10.0.0.1:8265"

    def __init__(self, *connections):
        self.connections = list(connections)
        self.sent = []

    def follow(self, job):
        for piece in self.connections.pop(0):
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def submit(self, command, env, job, metadata=None):
        self.sent.append((command, env, job, metadata))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(job_files, "RECONNECT_AFTER_S", 0.0)


HEAD = "--- job job-1\n"


@pytest.mark.parametrize(
    "kept, connections, lines",
    [
        ("", [["a\nb", "", "c\n\nd", "\nno end"]], ["a", "bc", "", "d", "no end"]),
        # a connection that breaks repeats nothing
        ("", [["a\nb\n", GONE], ["a\n", GONE], ["a\nb\nc\n"]], ["a", "b", "c"]),
        # another follower left early
        (f"{HEAD}a\nb\n", [["a\nb\nc\nd\n"]], ["a", "b", "c", "d"]),
        # a kill tore a line
        (f"{HEAD}a\nhal", [["a\nhalf\n"]], ["a", "half"]),
    ],
)
def test_every_line_is_told_and_kept_once(tmp_path, kept, connections, lines):
    log, told = JobLog(tmp_path / "log.txt"), []
    log.path.write_text(kept)
    assert list(log.follow(FakeServer(*connections), "job-1", on_break=told.append)) == lines
    assert log.path.read_text() == HEAD + "".join(f"{line}\n" for line in lines)
    assert told == [GONE] * (len(connections) - 1)


def test_each_job_has_its_own_part(tmp_path):
    log = JobLog(tmp_path / "log.txt")
    log.catch_up("job-1", "a\n")
    log.catch_up("job-10", "b\nc\n")
    log.catch_up("job-10", "b\nc\nd\n")
    assert (list(log.lines("job-1")), list(log.lines("job-10"))) == (["a"], ["b", "c", "d"])
    assert list(log.lines("job-2")) == []


def test_who_may_not_write_only_reads(tmp_path):
    log = JobLog(tmp_path / "log.txt")
    assert list(log.follow(FakeServer(["a\n"]), "job-1", keep=False)) == ["a"]
    assert not log.path.exists()


def test_secrets_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    log = JobLog(tmp_path / "log.txt")
    assert list(log.follow(FakeServer(["login 0123456789abcdef\n"]), "job-1")) == ["login <WANDB_API_KEY>"]
    assert "0123456789abcdef" not in log.path.read_text()


def test_a_record_keeps_the_earlier_jobs(tmp_path):
    server, ray = FakeServer(), LocalRay("http://127.0.0.1:1", 7, "/nowhere")
    first = submit(server, ["python3"], {"A": "1"}, tmp_path, CONFIG)
    second = submit(server, ["python3"], {}, tmp_path, CONFIG, ray)
    assert JobRecord.read(tmp_path) == second
    assert (second.earlier, second.ray, second.address) == ([first.job], ray, server.address)
    assert server.sent[0] == (["python3"], {"A": "1"}, first.job, {"sat_slime_run": str(tmp_path)})


def test_a_job_that_was_refused_is_on_record(tmp_path):
    class Refusing(FakeServer):
        def submit(self, *arguments):
            raise JobError("no")

    with pytest.raises(JobError):
        submit(Refusing(), ["python3"], {}, tmp_path, CONFIG)
    assert JobRecord.read(tmp_path).job.startswith("run-")


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"job": "a"})])
def test_a_damaged_record_is_named(tmp_path, text):
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(JobError, match=r"job\.json cannot be read"):
        JobRecord.read(tmp_path)
