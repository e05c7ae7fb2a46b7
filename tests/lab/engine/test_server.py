import asyncio
import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from waiting import assert_gone

from sat_slime.config.schema import ModelConfig, RolloutConfig
from sat_slime.lab.engine.server import ServerFailed, SGLangServer, server_arguments, server_environment
from sat_slime.rollout.client import ServerLost
from sat_slime.rollout.scratch import new_scratch

FAKE = [sys.executable, str(Path(__file__).parents[2] / "rollout" / "fake_sglang.py")]


@pytest.mark.parametrize(
    ("argument", "timeout", "message"),
    [
        ("--unhealthy", 1.0, r"not healthy after 1 s \(rollout.startup_timeout_s\)"),
        ("--exit", 60.0, r"exit code 3(?s:.)*cannot load the model"),
    ],
)
def test_a_server_that_does_not_come_up_is_an_error_with_its_log(tmp_path, argument, timeout, message):
    rollout = RolloutConfig(startup_timeout_s=timeout)
    server = SGLangServer(0, rollout, ModelConfig(), str(tmp_path), [*FAKE, argument])
    with pytest.raises(ServerFailed, match=message) as failure:
        asyncio.run(server.start(str(tmp_path), 0))
    assert str(server.log_path) in str(failure.value) and not server.alive


def test_start_and_stop(tmp_path):
    server = SGLangServer(0, RolloutConfig(), ModelConfig(), str(tmp_path), FAKE)
    asyncio.run(server.start(str(tmp_path), 3))
    process, folder = psutil.Process(server.pid), server.client.socket.parent
    assert server.alive and folder.exists()
    server.stop()
    assert not server.alive and not process.is_running() and not folder.exists()
    server.stop()


def test_a_server_listens_where_only_this_user_comes_and_its_log_says_where(tmp_path):
    server = SGLangServer(0, RolloutConfig(), ModelConfig(), str(tmp_path), FAKE)
    asyncio.run(server.start(str(tmp_path), 0))
    try:
        folder = server.client.socket.parent
        assert server.client.socket.is_socket() and folder.stat().st_mode & 0o077 == 0
        assert str(server.client.socket) in server.log_path.read_text()
        first = server.client.socket
        asyncio.run(server.start(str(tmp_path), 0))
        assert server.client.socket != first and not first.exists(), "nobody can wait where the next one will be"
    finally:
        server.stop()


def test_nobody_answers_in_place_of_a_server_that_died(tmp_path):
    server = SGLangServer(0, RolloutConfig(), ModelConfig(), str(tmp_path), FAKE)
    asyncio.run(server.start(str(tmp_path), 0))
    try:
        os.kill(server.pid, signal.SIGKILL)
        server._process.wait()
        with pytest.raises(ServerLost, match="http/update_weights_from_disk"):
            asyncio.run(server.client.update_weights(str(tmp_path), 1))
    finally:
        server.stop()


def test_arguments_follow_the_configuration():
    rollout, moe = RolloutConfig(dtype="float32", max_running_requests=10), ModelConfig(max_positions=120)
    words = server_arguments(rollout, moe, "/m", 7, on_gpu=False)
    pairs = dict(itertools.pairwise(words))
    assert pairs["--weight-version"] == "7" and pairs["--dtype"] == "float32" and pairs["--context-length"] == "128"
    assert int(pairs["--max-total-tokens"]) >= 10 * 120 and "--enable-return-routed-experts" in words
    assert "--enable-return-routed-experts" not in server_arguments(rollout, ModelConfig(experts=0), "/m", 0, False)
    assert "--device" not in server_arguments(rollout, moe, "/m", 7, on_gpu=True)
    assert "SGLANG_USE_CPU_ENGINE" in server_environment(False)
    assert "SGLANG_USE_CPU_ENGINE" not in server_environment(True)


PARENT = """
    import asyncio, sys, time
    from sat_slime.config.schema import ModelConfig, RolloutConfig
    from sat_slime.lab.engine.server import SGLangServer
    server = SGLangServer(0, RolloutConfig(dtype="float32"), ModelConfig(), sys.argv[2])
    asyncio.run(server.start(sys.argv[1], 0))
    print(server.pid, server.client.socket.parent, flush=True)
    time.sleep(1000)
"""


@pytest.mark.engine
def test_a_server_ends_with_its_parent_even_by_kill_9(random_models, tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), random_models["a"], str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        pid, folder = parent.stdout.readline().split()
        server, left = psutil.Process(int(pid)), Path(folder)
        family = [server, *server.children(recursive=True)]
        assert len(family) >= 3  # SGLang's scheduler and detokenizer are processes of their own
        assert left.is_dir() and list(Path("/dev/shm").glob(f"*{left.name}*"))
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
    assert_gone(family)
    assert not left.exists() and not list(Path("/dev/shm").glob(f"*{left.name}*"))


WITH_A_DEAD_CHILD = """
import os, subprocess, sys
child = subprocess.Popen([sys.argv[1], "-c", "input()"], stdin=subprocess.PIPE)
child.kill()
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
print(child.pid, flush=True)
sys.stdin.read()
"""


def spawn(server, program, *words):
    """A program that runs in the place of SGLang's server."""
    server._scratch = new_scratch()
    server.command = [sys.executable, "-c", program]
    server._spawn(list(words), {}, server._scratch)


@pytest.mark.parametrize(("name", "part"), [("sglang::scheduler", "scheduler"), ("sglang::detokenizer", "detokenizer")])
def test_which_process_of_a_server_that_is_still_there_died(tmp_path, name, part):
    (tmp_path / name).symlink_to(sys.executable)
    server = SGLangServer(2, RolloutConfig(), ModelConfig(), str(tmp_path))
    spawn(server, WITH_A_DEAD_CHILD, str(tmp_path / name))
    try:
        while not (lines := server.log_path.read_text().splitlines())[-1].isdigit():
            assert server.alive, lines
        told = f"SGLang's {part} (process {lines[-1]}) of engine 2 was killed by SIGKILL"
        assert server.alive and server.dead_part() == told
    finally:
        server.stop()
    assert server.dead_part() is None


SCHEDULER_DIED = "Subprocess scheduler_0 (pid=28148) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
SIGQUIT = "SIGQUIT received. signum=None, frame=None. It usually means one child failed."


@pytest.mark.parametrize(
    "log, told",
    [
        (f"{SCHEDULER_DIED}\\n{SIGQUIT}", r"SGLang's scheduler \(process 28148\) of engine 2 was killed by SIGKILL"),
        (SIGQUIT, "SGLang's server of engine 2 ended itself, since one of its processes failed"),
        ("serving", r"SGLang's HTTP server \(process \d+\) of engine 2 was killed by SIGKILL"),
        (f"{SCHEDULER_DIED}\\n--- again", r"SGLang's HTTP server \(process \d+\) of engine 2 was killed by SIGKILL"),
    ],
)
def test_which_process_of_a_server_died(tmp_path, log, told):
    """In the last case the scheduler died in the start before this one."""
    server = SGLangServer(2, RolloutConfig(), ModelConfig(), str(tmp_path))
    spawn(server, f"import os; print('{log}', flush=True); os.kill(os.getpid(), 9)")
    server._process.wait()
    assert re.fullmatch(told, server.how_it_ended())
    server.stop()
