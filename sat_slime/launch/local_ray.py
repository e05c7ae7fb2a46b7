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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sat_slime.config.exits import how_it_ended
from sat_slime.launch.ray_jobs import JobError, JobServer, token_for_own_ray
from sat_slime.launch.secrets import redact
from sat_slime.rollout.scratch import PREFIX, remove_shared_memory, temporary_folder
from sat_slime.runs import ray_start
from sat_slime.runs.folder import is_alive
from sat_slime.runs.ray_start import PATIENCE, free_ports

START_TIMEOUT_S = 420.0
STOP_TIMEOUT_S = 120.0
KILL_TIMEOUT_S = 10.0
END_TIMEOUT_S = 20.0
"""Seconds in which `ray start` may end after one of its processes died: it looks every second, and ends the others."""
POLL_S = 0.2
LOG = "start.log"
"""The file with what `ray start` wrote."""
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
    gpus: int | None = None, cpus: int | None = None, store_bytes: int | None = None, variables: Mapping[str, str] = {}
) -> LocalRay:
    """Starts a Ray that outlives this process. Secrets in the environment reach its jobs, as they must.

    gpus, cpus: the numbers that it offers, whatever the machine has and CUDA_VISIBLE_DEVICES says; None: all there are,
    and of the GPUs those that CUDA_VISIBLE_DEVICES names. store_bytes: size of its object store. variables: more
    environment. Raises JobError where Ray does not come up; nothing of it stays.
    """
    try:
        port, client_port, agent_port, agent_grpc_port, env_port, metrics_port = free_ports(6)
    except OSError as error:
        raise JobError(str(error)) from error
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=temporary_folder())
    offered = {"--num-gpus": gpus, "--num-cpus": cpus, "--object-store-memory": store_bytes}
    command = [
        *(sys.executable, "-m", ray_start.__name__, "start", "--block", "--disable-usage-stats"),
        *("--head", "--port=0", f"--ray-client-server-port={client_port}", "--node-ip-address=127.0.0.1"),
        *("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}"),
        f"--dashboard-agent-listen-port={agent_port}",  # else a second Ray could be sent no job
        # Ray does not wait for ports that are given; it waits 15 s for others: too short on a busy machine.
        *(f"--dashboard-agent-grpc-port={agent_grpc_port}", f"--runtime-env-agent-port={env_port}"),
        *(f"--metrics-export-port={metrics_port}", f"--temp-dir={folder}/ray"),
        *(f"{flag}={value}" for flag, value in offered.items() if value is not None),
    ]
    ray = LocalRay(f"http://127.0.0.1:{port}", 0, folder)
    try:
        with (Path(folder) / LOG).open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(folder, variables, gpus is not None),
                start_new_session=True,  # Ctrl-C here is not meant for Ray
            )
        ray = replace(ray, pid=process.pid)
        _wait_until_ready(ray, process)
    except BaseException:
        if ray.pid:
            with contextlib.suppress(JobError):  # the reason why it did not start is worth more
                stop_ray(ray)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return ray


def _environment(folder: str, variables: Mapping[str, str], gpus_on_paper: bool) -> dict[str, str]:
    """Return the environment of a Ray: this process's, without what would change which GPUs it offers."""
    hidden = ("RAY_ADDRESS", *(GPUS_FOR_RAY if gpus_on_paper else ()))
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment = {**PATIENCE, **environment, **variables}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",  # whose python3 is this
        "RAY_TMPDIR": folder,  # Ray notes there which one is this machine's; the note of another Ray stays
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # newer Rays would wait up to 30 s after SIGTERM
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # without a cluster all of Ray's servers bind to 127.0.0.1
    }
    if token := token_for_own_ray():  # whoever can talk to Ray can have it run anything
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    return environment


def _wait_until_ready(ray: LocalRay, process: subprocess.Popen[bytes]) -> None:
    """Waits until `ray start` has said that all is there, and the job server answers. Raises JobError."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None:
        with contextlib.suppress(JobError):
            if STARTED in _start_log(ray):
                JobServer(ray.address)
                return
        if time.monotonic() > deadline:
            raise JobError(f"Ray did not start on this machine within {START_TIMEOUT_S:.0f} s: stop other work on it")
        time.sleep(POLL_S)
    log = _start_log(ray)
    last = (log.strip().splitlines() or ["it wrote nothing"])[-1].strip()
    raise JobError(f"Ray did not start on this machine: {', '.join(_deaths(log)) or last}")


def _start_log(ray: LocalRay) -> str:
    """Return what `ray start` has written so far, without colours; nothing where the log is gone."""
    try:
        return _COLOUR.sub("", (Path(ray.folder) / LOG).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def stop_ray(ray: LocalRay, logs_to: Path | None = None) -> bool:
    """Ends a Ray and what it started, and returns whether it was still there; another process of that number is spared.
    logs_to: a folder that gets its workers' logs, without secrets, before Ray's goes."""
    environment = dict(os.environ)
    if was_there := is_running(ray):
        with contextlib.suppress(OSError):  # whose secrets its logs may hold; another terminal may not have them
            known = Path(f"/proc/{ray.pid}/environ").read_text(encoding="utf-8", errors="replace").split("\0")
            environment |= dict(entry.split("=", 1) for entry in known if "=" in entry)
        with contextlib.suppress(ProcessLookupError):  # it has ended just now
            os.kill(ray.pid, signal.SIGTERM)
        _ends_within(ray, STOP_TIMEOUT_S)
    _end_what_is_left(ray)
    remove_shared_memory(Path(ray.folder))
    if logs_to is not None:
        _copy_logs(ray, logs_to, environment)
    shutil.rmtree(ray.folder, ignore_errors=True)
    return was_there


def _copy_logs(ray: LocalRay, to: Path, environment: Mapping[str, str]) -> None:
    with contextlib.suppress(OSError):  # the disk may be full, which may be why the run ended
        for log in Path(ray.folder).glob("ray*/session_*[0-9]/logs/*"):
            if log.is_file() and not log.is_symlink() and log.stat().st_size:
                to.mkdir(parents=True, exist_ok=True)
                text = redact(log.read_text(encoding="utf-8", errors="replace"), environment)
                (to / f"{log.parts[-4]}-{log.name}").write_text(text, encoding="utf-8")


def _end_what_is_left(ray: LocalRay) -> None:
    """Kills a Ray that did not end, and jobs that it left: one that is not connected to Ray at its end does not end
    with it. All have Ray's folder, which no other Ray has, in their environment. They are looked for until none is
    left: a process may start while others are ended, and takes a moment to end."""
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
    timeout_s: seconds in which `ray start` may notice."""
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
    return is_alive(ray.pid, ray.folder)
