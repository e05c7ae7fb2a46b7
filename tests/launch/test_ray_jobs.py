import os
import signal
import socket
import stat
import subprocess
import sys
import types
import urllib.error
import urllib.request
from unittest import mock

import pytest
from ray.exceptions import AuthenticationError
from waiting import until

from sat_slime.launch import local_ray
from sat_slime.launch.local_ray import LocalRay, how_it_died, is_running, start_ray, stop_ray
from sat_slime.launch.ray_jobs import JobError, JobServer, NoAnswer, given_address, token_for_own_ray

PYTHON = "python3"


@pytest.fixture
def no_addresses(monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def test_which_address(no_addresses, monkeypatch):
    assert given_address(None, None) is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.3:6379")
    assert given_address(None, None) == "10.0.0.3:6379"
    assert given_address(None, "http://10.0.0.2:8265") == "http://10.0.0.2:8265"
    assert given_address("http://10.0.0.1:8265", "http://10.0.0.2:8265") == "http://10.0.0.1:8265"
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert given_address(None, None) is None


@pytest.mark.parametrize("form", ["http://127.0.0.1:{}", "127.0.0.1:{}"])
def test_nothing_there(no_addresses, form):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: nobody else gets the port, and it answers nobody
        with pytest.raises(NoAnswer, match=r"no Ray answers at .*: start one .*cluster.address.*--start-ray"):
            JobServer(form.format(taken.getsockname()[1]))


def test_only_a_cluster_that_says_so_does_not_know_a_job():
    server = mock.Mock(address="http://h:8265")
    said = ("404: Job a does not exist.", "502: no way to http://h:8265/api/jobs/a-20260404-101010.")
    errors = [RuntimeError(f"Request failed with status code {each}") for each in said]
    errors += [ValueError("1 validation error\n  entrypoint"), AuthenticationError("a token is wanted")]
    server._client.get_job_info.side_effect = errors
    assert JobServer.state(server, "a") is None
    for told in ("status code 502", r"8265: 1 validation error$", "a token is wanted"):
        with pytest.raises(JobError, match=told):
            JobServer.state(server, "a")


def test_a_password_in_an_address_is_not_shown(no_addresses):
    with pytest.raises(JobError) as refused:
        JobServer("http://me:hunter2@127.0.0.1:8265")
    assert "has a password" in str(refused.value) and "hunter2" not in str(refused.value)


def test_a_token_is_made_once_and_nobody_else_reads_it(monkeypatch, tmp_path):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "ray" / "auth_token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    token = token_for_own_ray()
    assert token == token_for_own_ray() == file.read_text() and len(token) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and list(file.parent.iterdir()) == [file]
    file.write_text("")
    with pytest.raises(JobError, match="holds no token"):
        token_for_own_ray()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "the-users")
    assert token_for_own_ray() == "the-users"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert token_for_own_ray() is None


def test_only_the_process_that_was_started_is_ended(tmp_path):
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        folder = tmp_path / "ray"
        folder.mkdir()
        assert not stop_ray(LocalRay("http://127.0.0.1:1", stranger.pid, str(folder)))
        assert stranger.poll() is None
        assert not folder.exists()
    finally:
        stranger.communicate()


NOWHERE = 2**22 + 1
"""A process number that no process has."""


@pytest.fixture
def starts(monkeypatch, tmp_path):
    """Starts of a Ray that ends at once. Their folders are in `starts.folder`; `starts.ends` says how each comes up."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(local_ray, "temporary_folder", lambda: str(folder))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "token")
    monkeypatch.setattr(subprocess, "Popen", mock.Mock(return_value=mock.Mock(pid=NOWHERE)))
    monkeypatch.setattr(local_ray, "_wait_until_ready", mock.Mock())
    return types.SimpleNamespace(folder=folder, ends=local_ray._wait_until_ready)


@pytest.mark.parametrize("value", ["", "-1", "0", None])
def test_gpus_on_paper_are_offered_whatever_the_environment_hides(starts, monkeypatch, value):
    if value is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    start_ray(gpus=2)
    start_ray()
    on_paper, of_the_machine = (call.kwargs["env"] for call in subprocess.Popen.call_args_list)
    assert "CUDA_VISIBLE_DEVICES" not in on_paper
    assert of_the_machine.get("CUDA_VISIBLE_DEVICES") == value


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no process")])
def test_a_start_that_is_broken_off_leaves_nothing(starts, error):
    (starts.ends if isinstance(error, KeyboardInterrupt) else subprocess.Popen).side_effect = error
    with pytest.raises(type(error)):
        start_ray()
    assert not list(starts.folder.iterdir())


STUBBORN = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(sys.argv[1], flush=True); input()"


def test_a_ray_that_does_not_end_when_told_is_killed_and_its_secrets_stay_out_of_its_logs(monkeypatch, tmp_path):
    monkeypatch.setattr(local_ray, "STOP_TIMEOUT_S", 0.0)
    command = [sys.executable, "-c", STUBBORN, str(tmp_path)]
    environment = {**os.environ, "RAY_TMPDIR": str(tmp_path), "ITS_TOKEN": "of-another-terminal"}
    (logs := tmp_path / "ray" / "session_1" / "logs").mkdir(parents=True)
    (logs / "a.out").write_text("it is of-another-terminal")
    kept = tmp_path.parent / "kept"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        process.stdout.readline()
        ray = LocalRay("http://127.0.0.1:1", process.pid, str(tmp_path))
        assert how_it_died(ray, timeout_s=0) is None
        assert stop_ray(ray, kept)
        assert process.wait() == -signal.SIGKILL
    assert (kept / "ray-a.out").read_text() == "it is <ITS_TOKEN>"


def test_a_ray_that_died_is_told_by_the_ends_of_its_processes(tmp_path):
    ends = ("gcs_server [exit code=-9]", "\x1b[31mraylet [exit code=-40]\x1b[0m", "dashboard [exit code=1]")
    (tmp_path / "start.log").write_text("".join(f"  {end}\n" for end in ends))
    died = how_it_died(LocalRay("http://127.0.0.1:1", NOWHERE, str(tmp_path)))
    gcs, raylet = "its gcs_server was killed by SIGKILL", "its raylet was killed by signal 40"
    assert died.endswith(f" ended: {gcs}, {raylet}, its dashboard ended with exit code 1")


@pytest.mark.engine
def test_a_ray_that_does_not_start_says_why(monkeypatch):
    monkeypatch.setattr("sat_slime.launch.local_ray.free_ports", lambda count: [1] * count)
    with pytest.raises(JobError, match="Ray did not start on this machine: "):
        start_ray()


@pytest.mark.engine
def test_a_job_from_start_to_end(ray_server, monkeypatch):
    # Ray's client would prefer these variables.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")
    server = JobServer(ray_server.address)
    assert os.environ["RAY_ADDRESS"] == "127.0.0.1:1"
    program = "import os; print('X is', repr(os.environ['X'])); raise SystemExit(3)"
    server.submit([PYTHON, "-c", program], {"X": 'it\'s "1 2"'}, "test-job-a")
    state = server.wait("test-job-a", 120)
    assert "X is 'it\\'s \"1 2\"'\n" in server.log("test-job-a")
    assert (state.status, state.exit_code, state.ended) == ("FAILED", 3, True)
    assert server.stop("test-job-a") == state  # it has ended and is left as it is


@pytest.mark.engine
def test_a_proxy_is_not_asked_for_ray(ray_server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "corp.example")
    monkeypatch.setenv("no_proxy", "")
    assert JobServer(ray_server.address).state("test-job-of-nobody") is None
    assert os.environ["no_proxy"].startswith("corp.example,")


@pytest.mark.engine
def test_a_job_of_somebody_without_the_token_is_refused(ray_server):
    job = urllib.request.Request(f"{ray_server.address}/api/jobs/", b'{"entrypoint": "true"}', method="POST")
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(job)
    assert refusal.value.code == 401


@pytest.mark.engine
def test_one_of_two_jobs_is_stopped(ray_server):
    server = JobServer(ray_server.address.removeprefix("http://"))
    assert server.address == ray_server.address
    for job in ("test-job-b", "test-job-c"):
        server.submit([PYTHON, "-c", "import time; print('up', flush=True); time.sleep(600)"], {}, job)
        until(lambda job=job: "up" in server.log(job).splitlines())  # Ray may write its own line behind it
    assert server.stop("test-job-b").status == "STOPPED"
    assert server.state("test-job-c").status == "RUNNING"
    assert server.stop("test-job-c").status == "STOPPED"


@pytest.mark.engine
def test_a_ray_of_ones_own_ends_alone(ray_server):
    mine = start_ray(gpus=0, cpus=1)
    assert is_running(mine) and mine.address != ray_server.address
    assert stop_ray(mine)
    assert not is_running(mine) and not stop_ray(mine)
    assert not os.path.exists(mine.folder)
    assert is_running(ray_server)
    with pytest.raises(NoAnswer):
        JobServer(mine.address)
