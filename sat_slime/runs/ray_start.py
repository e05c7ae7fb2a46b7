"""Helps Ray to start on a machine that has other work.

As a program it is `ray`, with its arguments: see `raylets_know`.
"""

from __future__ import annotations

import os
import random
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

STARTS = 2
"""Times that a Ray is started from scratch before a run gives up."""
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
LISTEN_PORT = "dashboard_agent_listen_port"
AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", LISTEN_PORT, "runtime_env_agent_port")
"""Ray's names of the ports of a raylet's agents. For each that it is not given it waits 15 s, and ends without it."""


class RayNotStarted(RuntimeError):
    """Ray did not start on this machine; the message says why, and names the load where that may be the cause."""


def load_remark() -> str:
    """Return the machine's load with a remedy, as the end of a sentence; empty where it is below the number of
    cores."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= cores:
        return ""
    return (
        f"; the machine is busy, with a load of {load:.1f} on {cores} core{'' if cores == 1 else 's'}: stop other "
        "work, or wait for it, and start again"
    )


_claims: dict[int, socket.socket] = {}


def claim(port: int) -> bool:
    """Return whether a port is this process's to give away: none of another process of ours on this machine, until that
    ends. A port that is looked for now and bound minutes later, by an engine that first loads its model, is free to all
    others meanwhile.

    A claim is a name in Linux's abstract socket namespace, which is the network's, as ports are.
    """
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


@contextmanager
def raylets_know(ports: Mapping[str, int]) -> Iterator[None]:
    """Has each raylet that this process starts know the port on which its agent listens.

    Ray gives that port to the agent alone. A raylet of Ray 2.60 waits for it too, 15 s, and ends without it; an older
    one does not know it. ports: by the names of AGENT_PORTS.
    """
    from ray import _raylet
    from ray._private import ray_constants, services

    start_process = services.start_ray_process

    def start(command: list[str], process_type: str, *arguments: Any, **more: Any) -> Any:
        is_raylet = process_type == ray_constants.PROCESS_TYPE_RAYLET
        waits = hasattr(_raylet, LISTEN_PORT.upper() + "_NAME")
        port = [f"--{LISTEN_PORT}={ports[LISTEN_PORT]}"] if is_raylet and waits else []
        return start_process([*command, *port], process_type, *arguments, **more)

    with patch.object(services, "start_ray_process", start):
        yield


def main() -> None:
    """Runs `ray start` and its like, whose raylet knows the port that the command line gives its agent."""
    from ray.scripts import scripts

    given = (word.partition("=")[2] for word in sys.argv if word.startswith("--dashboard-agent-listen-port="))
    with raylets_know({LISTEN_PORT: int(next(given))}):
        scripts.main()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that are not in use.

    They are above the ports of Ray's workers and below those that the kernel gives to connections, and `claim`ed for
    this process, since Ray binds some of them only seconds later.

    Raises:
        RayNotStarted: there are not so many.
    """
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
    raise RayNotStarted("no free port between 20000 and 32000 on this machine: stop what holds them")


def ray_logs(folder: Path | str) -> list[Path]:
    """Return the logs of the Ray whose temporary folder is `ray` in `folder`."""
    return [log for log in sorted(Path(folder).glob("ray/session_*[0-9]/logs/*")) if log.is_file()]


def newest_error(logs: Iterable[Path]) -> str:
    """Return the newest error in logs of Ray's, quoted as the end of a sentence; empty where there is none."""
    errors = [
        (error[1], f"; last in {log.name}: {error[0].strip()}")
        for log in logs
        for error in map(_SEVERE.match, log.read_text(encoding="utf-8", errors="replace").splitlines())
        if error
    ]
    return max(reversed(errors), key=lambda error: error[0], default=("", ""))[1]


_SEVERE = re.compile(r"\s*\[([^]]*) [CEF] .*")
"""An error's line in Ray's logs; its group is the time, as text that sorts."""


if __name__ == "__main__":
    main()
