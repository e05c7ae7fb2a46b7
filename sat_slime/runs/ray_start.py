"""Helps Ray to start on a machine that has other work. As a program it is `ray`, with its arguments."""

from __future__ import annotations

import random
import socket
import sys
from typing import Any

PATIENCE = {
    "RAY_raylet_start_wait_time_s": "200",  # a node, until the GCS knows it; default: 30
    "RAY_gcs_server_port_wait_time_s": "120",  # the GCS, until it answers; default: 30
    "RAY_agent_register_timeout_ms": "400000",
    "RAY_worker_register_timeout_seconds": "400",  # default: 60
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "400",  # default: 60
    "RAY_health_check_initial_delay_ms": "120000",  # default: 5000
    "RAY_health_check_timeout_ms": "120000",  # default: 10000
}
"""Ray's variables for how long it waits for its own parts, each of which begins by importing Ray's half in Python. The
defaults are too short where the cores have other work."""

_claims: dict[int, socket.socket] = {}


def claim(port: int) -> bool:
    """Return whether a port is this process's to give away: none of another process of ours on this machine, until that
    ends. One that an engine binds minutes later, when it has loaded its model, is free to all others meanwhile. A claim
    is a name in Linux's abstract socket namespace, which is the network's, as ports are."""
    if port in _claims:
        return True
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0sat_slime port {port}")
    except OSError:
        name.close()
        return False
    _claims[port] = name
    return True


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that are not in use: above those of Ray's workers, below those that the
    kernel gives to connections, and `claim`ed for this process, since Ray binds some of them only seconds later."""
    free: list[int] = []
    for port in random.sample(range(20_000, 32_000), 1_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if claim(port):
            free.append(port)
        if len(free) == count:
            return free
    raise OSError("no free port between 20000 and 32000 on this machine: stop what holds them")


def main() -> None:
    """Runs `ray start` and its like, whose raylet knows the port that the command line gives its agent. Ray gives it to
    the agent alone; a raylet of Ray 2.60 waits for it too, 15 s, and ends without it; an older one does not know it."""
    from ray import _raylet
    from ray._private import ray_constants, services
    from ray.scripts import scripts

    port = next(word.partition("=")[2] for word in sys.argv if word.startswith("--dashboard-agent-listen-port="))
    start_process = services.start_ray_process

    def start(command: list[str], process_type: str, *arguments: Any, **more: Any) -> Any:
        waits = hasattr(_raylet, "DASHBOARD_AGENT_LISTEN_PORT_NAME")
        is_raylet = process_type == ray_constants.PROCESS_TYPE_RAYLET
        known = [f"--dashboard_agent_listen_port={port}"] if is_raylet and waits else []
        return start_process([*command, *known], process_type, *arguments, **more)

    services.start_ray_process = start
    scripts.main()


if __name__ == "__main__":
    main()
