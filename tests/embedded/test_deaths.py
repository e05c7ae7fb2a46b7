"""How deaths of Ray's own processes are told."""

import errno
import os
import queue
import shutil
import socket
import subprocess
import threading
from unittest import mock

import pytest
from waiting import PATIENCE_S

from sat_slime.embedded import deaths
from sat_slime.embedded.deaths import RayWatch, children, exit_code


@pytest.fixture
def processes(tmp_path):
    """Starts children under any name; `cat` waits for its input to be closed, or does what its arguments say."""
    started = []

    def start(name, *arguments, program="cat"):
        copy = tmp_path / name
        copy.symlink_to(shutil.which(program))
        started.append(subprocess.Popen([copy, *arguments], stdin=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_children_have_their_programs_names(processes):
    process = processes("a-long-name-of-a-program")
    assert children()[process.pid] == "a-long-name-of-"
    assert exit_code(process.pid) is None


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_the_death_of_a_process_of_ray_is_told_once_with_its_name(processes, name):
    told = queue.Queue()
    ray = {each: processes(each) for each in deaths.RAY_PROCESSES}
    watch = RayWatch(told.put)
    ray[name].kill()
    assert told.get(timeout=PATIENCE_S) == f"Ray's {name} (process {ray[name].pid}) was killed by SIGKILL"
    for process in ray.values():
        process.kill()
    watch.end()
    assert told.empty()


def test_a_kernel_without_handles_of_processes_tells_it_too(processes, monkeypatch):
    monkeypatch.setattr(os, "pidfd_open", mock.Mock(side_effect=OSError(errno.ENOSYS, "not implemented")))
    told = queue.Queue()
    watch = RayWatch(told.put)
    processes("raylet").kill()
    assert "raylet" in told.get(timeout=PATIENCE_S)
    watch.end()


def test_a_gcs_that_closes_its_port_and_hangs_is_told(processes):
    told = queue.Queue()
    gcs = processes("gcs_server")
    with socket.create_server(("127.0.0.1", 0)) as server:
        watch = RayWatch(told.put)
        watch.gcs_address = f"127.0.0.1:{server.getsockname()[1]}"
        server.accept()[0].close()
        assert told.empty(), "it listens"
    assert told.get(timeout=PATIENCE_S) == f"Ray's gcs_server (process {gcs.pid}) closed its port"
    watch.end()


def test_a_death_that_shows_a_moment_later_is_waited_for(processes):
    told = queue.Queue()
    watch = RayWatch(told.put)
    raylet = processes("raylet")
    threading.Timer(0.2, raylet.kill).start()
    watch.settle()
    assert "raylet" in told.get(timeout=PATIENCE_S)


def test_the_end_of_a_watch_leaves_no_file_open(processes):
    for name in deaths.RAY_PROCESSES:
        processes(name)
    before = len(os.listdir("/proc/self/fd"))
    watch = RayWatch(print)
    watch.end()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_death_just_before_the_end_is_told_and_those_after_it_are_not(processes):
    told = queue.Queue()
    first, second = RayWatch(told.put), RayWatch(told.put)
    raylet = processes("raylet", "no such file")
    os.waitid(os.P_PID, raylet.pid, os.WEXITED | os.WNOWAIT)
    first.end()
    assert "raylet" in told.get(timeout=PATIENCE_S) and "ended with exit code 1" in told.get(timeout=PATIENCE_S)
    second.end()
    processes("gcs_server").kill()
    assert told.empty()


def test_other_children_may_die(processes):
    told = queue.Queue()
    watch = RayWatch(told.put)
    processes("log_monitor").kill()
    watch.end()
    assert told.empty()
