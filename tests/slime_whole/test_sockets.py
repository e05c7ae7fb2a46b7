"""A run of the real slime on a CPU has every socket on loopback, and leaves nothing once it is stopped."""

import ipaddress
import json
import subprocess
from pathlib import Path

import pytest
from test_faults import SETTINGS, processes, wait_for_step
from whole_run import environment

psutil = pytest.importorskip("psutil")

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


def listening(folder):
    """(address, port, name) of every socket of the run to which others can send."""
    for process in processes(folder, ""):
        for connection in process.net_connections("inet"):
            if not connection.raddr:
                yield connection.laddr.ip, connection.laddr.port, process.name()


def left_in_shared_memory(folder):
    return list(Path("/dev/shm").glob(f"*{Path(folder).name}*"))


def test_a_run_listens_on_loopback_alone_and_leaves_nothing(slime):
    command = slime.command("sockets", "--lag", "1", *SETTINGS, "--set", "pipeline.iterations=1000")
    launch = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    folder = slime.runs / "sockets"
    try:
        wait_for_step(folder, 1, launch)
        ray_folder = json.loads((folder / "job.json").read_text())["ray"]["folder"]
        found = list(listening(folder))
        assert {"ray::SatTrainRayActor", "sglang::scheduler"} <= {name.partition(".")[0] for *_, name in found}, found
        beyond = [one for one in found if not ipaddress.ip_address(one[0].removeprefix("::ffff:")).is_loopback]
        assert beyond == []
        assert left_in_shared_memory(ray_folder)
    finally:
        slime.stop("sockets")
        launch.wait()
    assert not Path(ray_folder).exists() and not left_in_shared_memory(ray_folder)
