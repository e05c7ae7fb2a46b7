"""Fork servers: what a forked process is given, how its end is told, and who outlives whom."""

import os
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import PATIENCE_S, until

from sat_slime.lab.forking.fork_server import listen
from sat_slime.lab.forking.forked_process import LOST, ForkedProcess, NoForkServer, socket_of
from sat_slime.rollout.scratch import new_scratch

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="fork servers need Linux")

SERVER = """
import sys
from sat_slime.lab.forking.fork_server import serve
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
    """A fork server that the tests share: it takes seconds to import."""
    with started_server() as started:
        yield started


@pytest.fixture
def own_server():
    """One that a test may end."""
    with started_server() as started:
        yield started


def fork(place, code, tmp_path, *arguments, **options) -> ForkedProcess:
    with open(os.devnull, "rb") as nothing, open(tmp_path / "output.txt", "ab") as output:
        options = {"environment": os.environ, **options}
        return ForkedProcess(
            place, ["forked", code, *arguments], stdin=nothing.fileno(), stdout=output.fileno(), **options
        )


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
    environment = {"OF_ITS_OWN": "1", "TMPDIR": str(folder)}
    process = fork(server[0], code, tmp_path, "argument", environment=environment, cwd=folder)
    assert process.wait(PATIENCE_S) == 0
    told = output_of(tmp_path)
    assert f"argument imported before the fork ['OF_ITS_OWN', 'TMPDIR'] {folder} True" in told
    assert "error" in told and f"'' {folder}" in told


def test_a_process_can_give_itself_a_name(server, tmp_path):
    pytest.importorskip("setproctitle", reason="it comes with SGLang")
    code = """
import setproctitle
setproctitle.setproctitle("of its own")
print(open("/proc/self/comm").read().strip(), open("/proc/self/cmdline").read().strip(chr(0)), sep=", ")
"""
    assert fork(server[0], code, tmp_path).wait(PATIENCE_S) == 0
    assert "of its own, of its own" in output_of(tmp_path)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("sys.exit(3)", 3),
        ("raise ValueError('a mistake')", 1),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.abort()", -signal.SIGABRT),
    ],
)
def test_how_a_process_ended_is_told_and_the_server_goes_on(server, tmp_path, code, expected):
    process = fork(server[0], code, tmp_path)
    assert process.wait(PATIENCE_S) == expected == process.poll() == process.returncode
    assert fork(server[0], "pass", tmp_path).wait(PATIENCE_S) == 0


def test_a_process_runs_beside_others_and_takes_signals(server, tmp_path):
    one, other = (fork(server[0], "import time; time.sleep(1000)", tmp_path) for _ in range(2))
    assert one.poll() is None and other.poll() is None
    one.send_signal(signal.SIGTERM)
    assert one.wait(PATIENCE_S) == -signal.SIGTERM and other.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(0.01)


def test_the_number_of_a_process_stays_its_own_until_nobody_holds_it(server, tmp_path):
    process = fork(server[0], "pass", tmp_path)
    process.wait(PATIENCE_S)
    pid = process.pid
    assert Path(f"/proc/{pid}").exists()
    del process
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_process_keeps_the_descriptors_that_it_is_given(server, tmp_path):
    kept, other_end = os.pipe()
    process = fork(server[0], "import time; time.sleep(1000)", tmp_path, keep=[other_end])
    os.close(other_end)
    os.set_blocking(kept, False)
    with pytest.raises(BlockingIOError):  # the other end is open somewhere
        os.read(kept, 1)
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)
    assert os.read(kept, 1) == b""
    os.close(kept)


@pytest.mark.parametrize("how", ["kill", "close"])
def test_a_process_ends_with_who_asked_for_it_and_so_do_its_own(server, tmp_path, how):
    code = """
import os, time
child = os.fork()
if child:
    print("child", child, os.getpid(), flush=True)
time.sleep(1000)
"""
    if how == "close":
        process = fork(server[0], code, tmp_path)
        until(lambda: "child" in output_of(tmp_path))
        del process
    else:
        asking = subprocess.Popen([sys.executable, "-c", _asks(server[0], code, tmp_path)])
        until(lambda: (tmp_path / "output.txt").exists() and "child" in output_of(tmp_path))
        asking.kill()
        asking.wait()
    _, *numbers = output_of(tmp_path).split()
    for pid in map(int, numbers):
        until(lambda pid=pid: not lives(pid))


def test_one_that_is_to_end_gently_gets_that_signal_alone(server, tmp_path):
    code = """
import os, signal, time
def end(*_):
    print("ended gently", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(1000)
"""
    process = fork(server[0], code, tmp_path, at_loss=signal.SIGTERM)
    until(lambda: "ready" in output_of(tmp_path))
    del process
    until(lambda: "ended gently" in output_of(tmp_path))


def test_without_its_server_a_process_is_still_waited_for(own_server, tmp_path):
    place, serving = own_server
    process = fork(place, "import time; time.sleep(1000)", tmp_path)
    serving.kill()
    serving.wait()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert lives(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(PATIENCE_S) == LOST


def test_a_server_ends_with_its_owner_once_its_processes_have(own_server, tmp_path):
    place, serving = own_server
    process = fork(place, "import time; time.sleep(1000)", tmp_path)
    serving.stdin.close()
    assert fork(place, "pass", tmp_path).wait(PATIENCE_S) == 0  # one that still runs may need another one
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)
    del process
    assert serving.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("request_bytes", [b"", b"short", b"\0\0\0\0\0\0\0\5", b"\0\0\0\0\0\0\0\5hello"])
def test_a_broken_request_costs_no_one_else_anything(server, tmp_path, request_bytes):
    import socket

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server[0]))
        connection.sendall(request_bytes)
    assert fork(server[0], "pass", tmp_path).wait(PATIENCE_S) == 0


def test_an_end_that_comes_with_the_number_is_told(tmp_path, short_path):
    """Who is slow to ask gets both in one piece."""
    import socket

    with listen(short_path / "server") as listener:

        def answer():
            connection = listener.accept()[0]
            connection.recv(1 << 20)
            connection.sendall(f'{{"pid": {os.getpid()}}}\n{{"code": 3}}\n'.encode())
            connection.shutdown(socket.SHUT_WR)
            return connection

        with ThreadPoolExecutor() as threads:
            held = threads.submit(answer)
            assert fork(short_path / "server", "pass", tmp_path).wait(PATIENCE_S) == 3
            held.result().close()


@pytest.mark.parametrize("at_loss", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_nobody_waits_for_any_more_is_ended(tmp_path, short_path, at_loss):
    """Who asked has gone before the server, which still imported, has forked."""
    with listen(short_path / "server") as listener:
        process = subprocess.Popen(
            [sys.executable, "-c", _asks(short_path / "server", "import time; time.sleep(1000)", tmp_path, at_loss)]
        )
        until(lambda: select.select([listener], [], [], 0)[0])
        process.kill()
        process.wait()
        serving = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(listener.fileno())], stdin=subprocess.PIPE, pass_fds=(listener.fileno(),)
        )
    until(lambda: (tmp_path / "output.txt").exists())
    serving.stdin.close()
    assert serving.wait(PATIENCE_S) == 0, "it waits for what it has forked"


def test_no_server_is_told(tmp_path):
    with pytest.raises(NoForkServer, match="names no fork servers"):
        socket_of("runs", {})
    with pytest.raises(NoForkServer, match="does not answer"):
        fork(tmp_path / "none", "pass", tmp_path)


def _asks(place, code, tmp_path, at_loss=signal.SIGKILL) -> str:
    return f"""
import os, time
from sat_slime.lab.forking.forked_process import ForkedProcess
output = os.open({str(tmp_path / "output.txt")!r}, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
process = ForkedProcess({str(place)!r}, ["forked", {code!r}], stdin=os.open("/dev/null", os.O_RDONLY),
    stdout=output, environment=os.environ, at_loss={int(at_loss)})
time.sleep(1000)
"""
