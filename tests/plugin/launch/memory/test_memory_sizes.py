"""What a machine tells of itself: by this machine, and by stand-ins for the driver's tool."""

import os
import shutil
import subprocess

import pytest

from sat_slime.launch.memory.memory_needs import GIB, MIB
from sat_slime.launch.memory.memory_sizes import (
    gpu_memory,
    host_memory,
    left_here,
    machine_sizes,
    memory_in_use,
    shared_memory,
    sizes_of_nodes,
)


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts an nvidia-smi of the given lines in front of the path."""

    def write(script):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return write


def test_the_smallest_gpu_without_what_the_driver_keeps(tool):
    tool("echo '81559, 551'; echo '40960, 400'")
    assert gpu_memory() == (40960 - 400) * MIB


def test_a_driver_that_does_not_tell_what_it_keeps(tool):
    tool('case "$*" in *reserved*) echo "Field memory.reserved is not a valid field"; exit 2;; esac; echo 81920')
    assert gpu_memory() == 81920 * MIB
    tool('case "$*" in *reserved*) echo "81920, [N/A]";; *) echo 81920;; esac')
    assert gpu_memory() == 81920 * MIB


def test_a_machine_without_gpus(tool):
    tool('echo "NVIDIA-SMI has failed"; exit 9')
    assert gpu_memory() is None
    tool("exit 0")
    assert gpu_memory() is None


def test_this_machine():
    told = machine_sizes()
    assert told.keys() == {"gpu", "host", "shm"}
    assert host_memory() > GIB // 4
    if shutil.which("df"):
        blocks = subprocess.run(["df", "-B1", "--output=size", "/dev/shm"], capture_output=True, text=True).stdout
        assert shared_memory() == int(blocks.split()[-1])


def test_nodes_without_gpus_are_not_asked():
    nodes = [
        {"name": "head", "gpus": 0, "sizes": {"host": GIB}},
        {"name": "a", "gpus": 8.0, "sizes": {"host": 4 * GIB}},
    ]
    assert sizes_of_nodes(nodes) == {"node a": {"host": 4 * GIB}}


def test_what_other_programs_hold_is_not_left(tmp_path):
    """Of a container its own is counted, of a machine all that programs hold; files that can be dropped are not."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 8000 kB\nMemFree: 100 kB\nMemAvailable: 6000 kB\n")
    assert memory_in_use(tmp_path) == 2000 * 1024
    container = tmp_path / "sys" / "fs" / "cgroup"
    container.mkdir(parents=True)
    (container / "memory.current").write_text("5000\n")
    (container / "memory.stat").write_text("anon 3000\ninactive_file 1500\n")
    (container / "memory.max").write_text("max\n")
    assert memory_in_use(tmp_path) == 2000 * 1024
    (container / "memory.max").write_text("9000\n")
    assert memory_in_use(tmp_path) == 3500


def test_what_is_left_here():
    there = left_here().host
    assert there is not None
    assert 0 < there.taken < there.bytes == host_memory()
