"""A Ray of a run's own on this machine, on the loopback interface; nothing else is ever ended here."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sat_slime.config.exits import how_it_ended
from sat_slime.plugin.launch.ray_jobs import JobError, JobServer, token_for_own_ray
from sat_slime.rollout.ray_start import PATIENCE, STARTS, RayNotStarted, free_ports, load_remark
from sat_slime.rollout.scratch import PREFIX, remove_shared_memory

START_TIMEOUT_S = 420.0
STOP_TIMEOUT_S = 120.0
KILL_TIMEOUT_S = 10.0
END_TIMEOUT_S = 20.0
"""`ray start` looks every second whether Ray's processes live, and ends the others before itself."""
POLL_S = 0.2
PORTS = 6
"""Those that a Ray is given."""


@dataclass(frozen=True)
class LocalRay:
    """A Ray that was started here, as a run folder remembers it."""

    address: str
    """http://127.0.0.1:PORT of its dashboard."""
    pid: int
    """`ray start --block`, which ends all of Ray's processes when it ends."""
    folder: str
    """Ray's temporary folder with its logs; a part of its command line, by which the process is known again."""


def start_ray(
    gpus: int | None = None,
    cpus: int | None = None,
    store_bytes: int | None = None,
    variables: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = print,
) -> LocalRay:
    """Start a Ray that outlives this process. Secrets in the environment reach its jobs, as they must.

    gpus, cpus: what it offers, on paper; None: all there are. store_bytes: of its object store. variables: more
    environment. One that does not come up is told to `tell` and started once more, from scratch; raises JobError when
    that does not help, and then alone a folder stays, with the log that the error names.
    """
    offered = {"--num-gpus": gpus, "--num-cpus": cpus, "--object-store-memory": store_bytes}
    flags = [f"{flag}={value}" for flag, value in offered.items() if value is not None]
    token = token_for_own_ray()
    for start in range(1, STARTS + 1):
        try:
            ports = free_ports(PORTS)
        except RayNotStarted as error:
            raise JobError(str(error)) from error
        folder = tempfile.mkdtemp(prefix=PREFIX)
        last = start == STARTS
        try:
            return _start_in(folder, ports, flags, token, variables, keep_log=last)
        except JobError as error:
            if last:
                raise JobError(f"{error}; more in {_log(folder)}{load_remark()}") from error
            tell(f"{error}; starting it once more")
        except OSError:  # its log or its process could not be made
            shutil.rmtree(folder, ignore_errors=True)
            raise
    raise AssertionError


def _start_in(
    folder: str,
    ports: Sequence[int],
    flags: Sequence[str],
    token: str | None,
    variables: Mapping[str, str] | None,
    keep_log: bool,
) -> LocalRay:
    """keep_log: of one that does not come up; else its folder goes, as it does at Ctrl-C. Raises JobError."""
    port, agent_port, client_port, metrics_port, env_port, export_port = ports
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *("--node-ip-address=127.0.0.1", "--port=0", f"--ray-client-server-port={client_port}"),
        *("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}"),
        f"--dashboard-agent-listen-port={agent_port}",  # where a second Ray would lack it, no job could be sent
        # Ports that are given are not waited for: Ray gives its agents 15 s to tell theirs, too few on a busy machine.
        *(f"--dashboard-agent-grpc-port={metrics_port}", f"--runtime-env-agent-port={env_port}"),
        f"--metrics-export-port={export_port}",
        f"--temp-dir={folder}/ray",
        *flags,
    ]
    environment = {
        **PATIENCE,
        **own_python_first(),
        **(variables or {}),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # no cluster: all of Ray's servers then bind to 127.0.0.1
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # ends at SIGTERM, where newer Rays wait up to 30 s
        "RAY_TMPDIR": folder,  # where Ray notes which one is this machine's; another Ray keeps its note
    }
    environment.pop("RAY_ADDRESS", None)
    if token:  # who can talk to Ray can have it run anything
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    with _log(folder).open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C here is not meant for it
        )
    ray = LocalRay(f"http://127.0.0.1:{port}", process.pid, folder)
    try:
        _wait_until_ready(ray, process)
    except BaseException as error:
        with contextlib.suppress(JobError):  # why it did not start is worth more than that it does not end
            stop_ray(ray, keep_logs=keep_log and isinstance(error, JobError))
        raise
    return ray


def _log(folder: str) -> Path:
    """What `ray start` wrote."""
    return Path(folder) / "start.log"


def own_python_first() -> dict[str, str]:
    """This process's environment, in which `python3` is its own interpreter."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def _wait_until_ready(ray: LocalRay, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            JobServer(ray.address)
            return
        except JobError as error:
            if process.poll() is not None:
                log = _log(ray.folder).read_text(encoding="utf-8", errors="replace")
                lines = log.strip().splitlines() or ["it wrote nothing"]
                raise JobError(f"Ray did not start on this machine: {lines[-1].strip()}") from None
            if time.monotonic() > deadline:
                raise JobError(f"Ray did not start on this machine within {START_TIMEOUT_S:.0f} s") from error
        time.sleep(POLL_S)


def stop_ray(ray: LocalRay, keep_logs: bool = False) -> bool:
    """End it and what it started; whether it was still there. A process that is not the one started is left alone.

    keep_logs: leave its folder, for its workers' logs.
    """
    was_there = _is_ours(ray)
    if was_there:
        _end(ray)
    _end_what_is_left(ray)
    remove_shared_memory(Path(ray.folder))
    if not keep_logs:
        shutil.rmtree(ray.folder, ignore_errors=True)
    return was_there


def _end(ray: LocalRay) -> None:
    os.kill(ray.pid, signal.SIGTERM)
    if not _ends_within(ray, STOP_TIMEOUT_S):
        os.kill(ray.pid, signal.SIGKILL)  # upon which the kernel ends its other processes
        if not _ends_within(ray, KILL_TIMEOUT_S):
            raise JobError(f"the Ray of this run (process {ray.pid}) does not end: see {ray.folder}")


def _end_what_is_left(ray: LocalRay) -> None:
    """Its jobs: one that is not connected to Ray at that moment does not end with it. They have its folder, which no
    other Ray has, in their environment.

    Looked for until none is left: a process may be born while the others are ended, and takes a moment to end."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while left := _processes_of(ray):
        for pid in left:
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise JobError(f"processes {left} of the Ray of this run do not end: see {ray.folder}")
        time.sleep(POLL_S)


def _processes_of(ray: LocalRay) -> list[int]:
    """Those with its folder in their environment; a zombie's is empty."""
    mark, found = f"RAY_TMPDIR={ray.folder}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def _ends_within(ray: LocalRay, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while _is_ours(ray) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return not _is_ours(ray)


def how_it_died(ray: LocalRay, timeout_s: float = END_TIMEOUT_S) -> str | None:
    """Why a Ray that was not told to end is not there, in a sentence; None while it is.

    timeout_s: for `ray start` to notice.
    """
    if not _ends_within(ray, timeout_s):
        return None
    try:
        log = _log(ray.folder).read_text(encoding="utf-8", errors="replace")
    except OSError:
        log = ""
    dead = [f"its {name} {how_it_ended(int(code))}" for name, code in _EXITED.findall(_COLOUR.sub("", log))]
    return f"the Ray that was started for it ended: {', '.join(dead) or f'its process {ray.pid} was killed or crashed'}"


_COLOUR = re.compile(r"\x1b\[\d+m")
_EXITED = re.compile(r"(\w+) \[exit code=(-?\d+)")
"""How `ray start --block` names a process that exited unexpectedly."""


def is_running(ray: LocalRay) -> bool:
    """Whether it is still there."""
    return _is_ours(ray)


def _is_ours(ray: LocalRay) -> bool:
    try:
        state = Path(f"/proc/{ray.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        command = Path(f"/proc/{ray.pid}/cmdline").read_text(encoding="utf-8")
    except (OSError, IndexError):
        return False
    return state != "Z" and ray.folder in command
