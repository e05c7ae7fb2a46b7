"""Fork servers: what a forked process is given, how its end is reported, and who outlives whom."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import PATIENCE_S, until

from sat_slime.lab.forking import LOST, ForkedProcess, NoForkServer, listen, serve, socket_of
from sat_slime.rollout.scratch import new_scratch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="fork servers need Linux")

SERVER = f"""
import sys
from {serve.__module__} import serve
imported = "imported before the fork"
if serve(int(sys.argv[1])):
    exec(sys.argv[1])
"""


@contextmanager
def started_server():
    """(socket of a fork server whose processes run the Python code of their second argument, its process)."""
    scratch = new_scratch()
    place = scratch.path / "server"
    with listen(place) as listener:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
        )
    yield place, process
    process.kill()
    process.communicate()
    scratch.remove()


@pytest.fixture(scope="module")
def server():
    with started_server() as (place, _):
        yield place


def fork(place, code, tmp_path, *arguments, **options) -> ForkedProcess:
    with open(os.devnull, "rb") as nothing, open(tmp_path / "output.txt", "ab") as output:
        given = {"stdin": nothing.fileno(), "stdout": output.fileno(), "environment": os.environ, **options}
        return ForkedProcess(place, ["forked", code, *arguments], **given)


def output_of(tmp_path) -> str:
    return (tmp_path / "output.txt").read_text()


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_has_its_own_arguments_environment_folder_and_files(server, tmp_path):
    code = """
import os, tempfile
print(sys.argv[2], imported, sorted(set(os.environ) - {"LC_CTYPE"}), os.getcwd(), os.getsid(0) == os.getpid())
print("error", file=sys.stderr)
print(repr(sys.stdin.read()), tempfile.gettempdir())
"""
    folder = tmp_path / "folder"
    folder.mkdir()
    environment = {"OF_ITS_OWN": "x" * 100_000, "TMPDIR": str(folder)}
    process = fork(server, code, tmp_path, "argument", environment=environment, cwd=folder)
    assert process.wait(PATIENCE_S) == 0
    assert f"argument imported before the fork ['OF_ITS_OWN', 'TMPDIR'] {folder} True" in output_of(tmp_path)
    assert "error" in output_of(tmp_path) and f"'' {folder}" in output_of(tmp_path)


@pytest.mark.parametrize(
    ("code", "expected"),
    [("sys.exit(3)", 3), ("raise ValueError('a mistake')", 1), ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL)],
)
def test_how_a_process_ended_is_reported_and_its_number_stays_its_own(server, tmp_path, code, expected):
    other = fork(server, "import time; time.sleep(1000)", tmp_path)
    process = fork(server, code, tmp_path)
    assert process.wait(PATIENCE_S) == expected == process.poll() == process.returncode
    pid = process.pid
    assert Path(f"/proc/{pid}").exists()
    del process
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert other.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(0.01)
    other.send_signal(signal.SIGTERM)
    assert other.wait(PATIENCE_S) == -signal.SIGTERM


def test_standard_input_and_descriptors_that_it_keeps_close_with_their_holders(server, tmp_path):
    kept, other_end = os.pipe()
    code = "sys.stdin.read(); print('closed', flush=True); import time; time.sleep(1000)"
    with (tmp_path / "output.txt").open("ab") as output:
        process = ForkedProcess.with_stdin(
            server, ["", code], stdout=output.fileno(), environment=os.environ, keep=[other_end]
        )
    os.close(other_end)
    os.set_blocking(kept, False)
    with pytest.raises(BlockingIOError):  # the other end is open somewhere
        os.read(kept, 1)
    process.stdin.close()
    until(lambda: "closed" in output_of(tmp_path))
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)
    assert os.read(kept, 1) == b""
    os.close(kept)


@pytest.mark.parametrize("ends_with_server", [True, False])
def test_a_server_ends_with_its_owner_and_so_does_what_is_to_end_with_it(tmp_path, ends_with_server):
    code = """
import signal, time
def end(*_):
    print("ended", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(1000)
"""
    with started_server() as (place, serving):
        process = fork(place, code, tmp_path, ends_with_server=ends_with_server)
        until(lambda: "ready" in output_of(tmp_path))
        serving.stdin.close()
        assert serving.wait(PATIENCE_S) == 0
        assert process.wait(PATIENCE_S) == LOST
        if ends_with_server:
            until(lambda: "ended" in output_of(tmp_path))
        else:
            assert lives(process.pid)
            os.kill(process.pid, signal.SIGKILL)
        until(lambda: not lives(process.pid))


@pytest.mark.parametrize("request_bytes", [b"", b"short", b'[["forked"], {}]'])
def test_a_broken_request_costs_no_one_else_anything(server, tmp_path, request_bytes):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(server))
        connection.sendall(request_bytes)
    assert fork(server, "pass", tmp_path).wait(PATIENCE_S) == 0


def test_no_server_is_an_error(tmp_path):
    with pytest.raises(NoForkServer, match="names no fork servers"):
        socket_of("runs", {})
    with pytest.raises(NoForkServer, match="does not answer"):
        fork(tmp_path / "none", "pass", tmp_path)
