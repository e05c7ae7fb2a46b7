"""Starts and ends a Ray for one run on this machine, on the loopback interface; no other process is ever ended here."""

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
from sat_slime.rollout.ray_start import PATIENCE, STARTS, RayNotStarted, free_ports, load_remark, newest_error, ray_logs
from sat_slime.rollout.scratch import PREFIX, remove_shared_memory, temporary_folder

START_TIMEOUT_S = 420.0
STOP_TIMEOUT_S = 120.0
KILL_TIMEOUT_S = 10.0
END_TIMEOUT_S = 20.0
"""Seconds in which `ray start` may end after one of Ray's processes died: it looks every second, and first ends the
others."""
POLL_S = 0.2
PORTS = 6
"""Number of ports that a Ray is given."""
STARTED = "Ray runtime started"
"""What `ray start` writes once all of its processes are there. Its dashboard answers before."""
GPUS_FOR_RAY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ONEAPI_DEVICE_SELECTOR")
"""Environment variables by which Ray counts the GPUs that it may offer."""


@dataclass(frozen=True)
class LocalRay:
    """A Ray that was started here, as a run folder remembers it."""

    address: str
    """http://127.0.0.1:PORT of Ray's dashboard."""
    pid: int
    """Process number of `ray start --block`, which ends all of Ray's processes when it ends."""
    folder: str
    """Ray's temporary folder with its logs. It is part of the command line, by which the process is recognized."""


def start_ray(
    gpus: int | None = None,
    cpus: int | None = None,
    store_bytes: int | None = None,
    variables: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = print,
) -> LocalRay:
    """Starts a Ray that outlives this process. Secrets in the environment reach its jobs, as they must.

    gpus, cpus: the numbers that Ray offers, whatever the machine has and CUDA_VISIBLE_DEVICES says; None: all there
    are, and of the GPUs those that CUDA_VISIBLE_DEVICES names. store_bytes: size of its object store. variables: more
    environment. If Ray does not come up, `tell` is told and it is started once more, from
    scratch. Raises JobError when that does not help; only then does a folder stay, with the log that the error names.
    """
    offered = {"--num-gpus": gpus, "--num-cpus": cpus, "--object-store-memory": store_bytes}
    flags = [f"{flag}={value}" for flag, value in offered.items() if value is not None]
    token = token_for_own_ray()
    hidden = GPUS_FOR_RAY if gpus is not None else ()
    environment = {name: value for name, value in own_python_first().items() if name not in hidden}
    environment.update(variables or {})
    for start in range(1, STARTS + 1):
        try:
            ports = free_ports(PORTS)
        except RayNotStarted as error:
            raise JobError(str(error)) from error
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=temporary_folder())
        last = start == STARTS
        try:
            return _start_in(folder, ports, flags, token, environment, keep_log=last)
        except JobError as error:
            if last:
                raise JobError(f"{error}; more in {_log(folder)}{load_remark()}") from error
            tell(f"{error}; starting it once more")
        except OSError:  # Ray's log or its process could not be made
            shutil.rmtree(folder, ignore_errors=True)
            raise
    raise AssertionError


def _start_in(
    folder: str,
    ports: Sequence[int],
    flags: Sequence[str],
    token: str | None,
    environment: Mapping[str, str],
    keep_log: bool,
) -> LocalRay:
    """Starts a Ray in a folder. keep_log: keep the folder of a Ray that does not come up, for its log; otherwise it is
    removed, as it is at Ctrl-C. Raises JobError."""
    port, agent_port, client_port, metrics_port, env_port, export_port = ports
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *("--node-ip-address=127.0.0.1", "--port=0", f"--ray-client-server-port={client_port}"),
        *("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}"),
        f"--dashboard-agent-listen-port={agent_port}",  # without a free port a second Ray could be sent no job
        # Ray does not wait for ports that are given; it waits 15 s for others, which is too short on a busy machine.
        *(f"--dashboard-agent-grpc-port={metrics_port}", f"--runtime-env-agent-port={env_port}"),
        f"--metrics-export-port={export_port}",
        f"--temp-dir={folder}/ray",
        *flags,
    ]
    environment = {
        **PATIENCE,
        **environment,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # without a cluster all of Ray's servers bind to 127.0.0.1
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # newer Rays would wait up to 30 s after SIGTERM
        "RAY_TMPDIR": folder,  # Ray notes there which one is this machine's; the note of another Ray stays
    }
    environment.pop("RAY_ADDRESS", None)
    if token:  # whoever can talk to Ray can have it run anything
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    with _log(folder).open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C here is not meant for Ray
        )
    ray = LocalRay(f"http://127.0.0.1:{port}", process.pid, folder)
    try:
        _wait_until_ready(ray, process)
    except BaseException as error:
        with contextlib.suppress(JobError):  # the reason why it did not start is worth more
            stop_ray(ray, keep_logs=keep_log and isinstance(error, JobError))
        raise
    return ray


def _log(folder: str) -> Path:
    """Return the file with what `ray start` wrote."""
    return Path(folder) / "start.log"


def own_python_first() -> dict[str, str]:
    """This process's environment, changed so that `python3` is this process's interpreter."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def _wait_until_ready(ray: LocalRay, process: subprocess.Popen[bytes]) -> None:
    """Waits until `ray start` has said that all is there, and the job server answers. Raises JobError."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None:
        with contextlib.suppress(JobError):
            if STARTED in _start_log(ray):
                JobServer(ray.address)
                return
        if time.monotonic() > deadline:
            late = f"Ray did not start on this machine within {START_TIMEOUT_S:.0f} s"
            raise JobError(f"{late}{newest_error(ray_logs(ray.folder))}")
        time.sleep(POLL_S)
    raise JobError(f"Ray did not start on this machine: {_why_it_ended(ray)}")


def _start_log(ray: LocalRay) -> str:
    """Return what `ray start` has written so far, without colours; nothing where the log is gone."""
    try:
        return _COLOUR.sub("", _log(ray.folder).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def _why_it_ended(ray: LocalRay) -> str:
    """Return the reason why a `ray start` ended: its processes that died, or its last line; and what they wrote of
    errors."""
    log = _start_log(ray)
    last = (log.strip().splitlines() or ["it wrote nothing"])[-1].strip()
    return f"{', '.join(_deaths(log)) or last}{newest_error(ray_logs(ray.folder))}"


def stop_ray(ray: LocalRay, keep_logs: bool = False) -> bool:
    """Ends a Ray and what it started, and returns whether it was still there. A process that is not the one that was
    started is left alone.

    keep_logs: leave Ray's folder, for its workers' logs.
    """
    was_there = is_running(ray)
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
        os.kill(ray.pid, signal.SIGKILL)  # the kernel then ends Ray's other processes
        if not _ends_within(ray, KILL_TIMEOUT_S):
            raise JobError(f"the Ray of this run (process {ray.pid}) does not end: see {ray.folder}")


def _end_what_is_left(ray: LocalRay) -> None:
    """Ends jobs that Ray left: a job that is not connected to Ray at its end does not end with it. Jobs have Ray's
    folder, which no other Ray has, in their environment.

    They are looked for until none is left: a process may start while the others are ended, and takes a moment to
    end."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while left := _processes_of(ray):
        for pid in left:
            with contextlib.suppress(OSError):  # the process has ended, or is another user's
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise JobError(f"processes {left} of the Ray of this run do not end: see {ray.folder}")
        time.sleep(POLL_S)


def _processes_of(ray: LocalRay) -> list[int]:
    """Return the numbers of the processes with Ray's folder in their environment; a zombie's environment is empty."""
    mark, pids = f"RAY_TMPDIR={ray.folder}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                pids.append(int(process.name))
    return pids


def _ends_within(ray: LocalRay, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while is_running(ray) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return not is_running(ray)


def how_it_died(ray: LocalRay, timeout_s: float = END_TIMEOUT_S) -> str | None:
    """Return the reason why a Ray that was not told to end is gone, in a sentence; None while it is there.

    timeout_s: seconds in which `ray start` may notice.
    """
    if not _ends_within(ray, timeout_s):
        return None
    dead = ", ".join(_deaths(_start_log(ray))) or f"its process {ray.pid} was killed or crashed"
    return f"the Ray that was started for it ended: {dead}"


def _deaths(log: str) -> list[str]:
    """Return how each process ended of which `ray start` wrote that it exited unexpectedly."""
    return [f"its {name} {how_it_ended(int(code))}" for name, code in _EXITED.findall(log)]


_COLOUR = re.compile(r"\x1b\[\d+m")
_EXITED = re.compile(r"(\w+) \[exit code=(-?\d+)")
"""The form in which `ray start --block` names a process that exited unexpectedly."""


def is_running(ray: LocalRay) -> bool:
    """Return whether a Ray is still there; a process that has its number and is another one does not count."""
    try:
        state = Path(f"/proc/{ray.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        command = Path(f"/proc/{ray.pid}/cmdline").read_text(encoding="utf-8")
    except (OSError, IndexError):
        return False
    return state != "Z" and ray.folder in command
