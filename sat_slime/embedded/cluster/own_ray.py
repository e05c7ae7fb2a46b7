"""Ray for one run alone: its start on the loopback interface, its end, and what it leaves."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sat_slime.embedded.cluster.ray_environment import ray
from sat_slime.embedded.cluster.results import ActorFailure, RayDied, first_lines
from sat_slime.embedded.deaths import RAY_PROCESSES, RayWatch, children
from sat_slime.embedded.forking import ray_worker
from sat_slime.embedded.forking.forked_process import FOLDER
from sat_slime.rollout.ray_start import (
    AGENT_PORTS,
    RayNotStarted,
    free_ports,
    load_remark,
    newest_error,
    ray_logs,
    raylets_know,
)
from sat_slime.rollout.scratch import new_scratch, remove_scratch


@contextmanager
def local_ray(log_dir: Path | None = None, lost: Callable[[RuntimeError], None] | None = None) -> Iterator[Path]:
    """Brings up Ray for this run alone, on the loopback interface; it ends with this process, however that ends.

    Yields a scratch folder, which goes away with it.

    Args:
        log_dir: gets the logs of Ray's own processes when one of them dies.
        lost: is told that a process of Ray died, as RayDied or RayNotStarted, from another thread. What it then does
            must end this process: Ray's library hangs, and ends it after a minute. Default: nobody watches.

    Raises:
        RayNotStarted: Ray did not start; the message says why.
    """
    folder = new_scratch()
    runs = False

    def died(what: str) -> None:
        _end_rays_processes()  # first: they would write about it between our lines
        dead = next((name for name in RAY_PROCESSES if name in what), "")
        last = _keep_logs(folder.path, log_dir, dead)
        remove_scratch(folder.path)
        if lost is not None:
            lost(RayDied(f"{what}{last}") if runs else RayNotStarted(f"Ray did not start: {what}{last}{load_remark()}"))

    watch = RayWatch(died) if lost is not None else None
    try:
        _start_ray(folder.path, log_dir)
        runs = True
        if watch is not None:
            watch.gcs_address = ray.get_runtime_context().gcs_address
        yield folder.path
    except ActorFailure:
        if watch is not None:
            watch.settle()
        raise
    finally:
        if watch is not None:
            watch.end()
        ray.shutdown()
        _end_rays_processes()
        folder.remove()


def _start_ray(scratch: Path, log_dir: Path | None) -> None:
    from ray._raylet import AuthenticationMode, get_authentication_mode  # type: ignore[attr-defined]

    if get_authentication_mode() != AuthenticationMode.TOKEN:
        raise RayNotStarted("Ray was imported before sat_slime.embedded, which has it ask for a token: import it later")
    try:
        with _ray_as_we_need_it(), _signals_left_alone():
            # Without the address a RAY_ADDRESS in the environment would put a laptop run onto somebody's cluster.
            ray.init(
                address="local",
                _node_ip_address="127.0.0.1",
                _temp_dir=str(scratch / "ray"),
                num_cpus=os.cpu_count(),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=256 * 2**20,
            )
    except Exception as error:
        last = _keep_logs(scratch, log_dir)
        raise RayNotStarted(f"Ray did not start: {first_lines(error)}{last}{load_remark()}") from error


@contextmanager
def _ray_as_we_need_it() -> Iterator[None]:
    """Gives Ray's node what `ray.init`, unlike `ray start`, does not take.

    Ports for the raylet's agents: it waits 15 s for agents that choose ports themselves, and ends without them. No log
    monitor, no autoscaler and no dashboard process, which `include_dashboard=False` only empties: a run on one machine
    needs none of them. Workers from the fork server, where this process has one.
    """
    from ray._private import parameter, services

    ports = dict(zip(AGENT_PORTS, free_ports(len(AGENT_PORTS)), strict=True))
    options: dict[str, Any] = {**ports, "include_log_monitor": False, "no_monitor": True}
    if FOLDER in os.environ:
        options["setup_worker_path"] = ray_worker.__file__

    class Params(parameter.RayParams):
        def __init__(self, **given: Any) -> None:
            super().__init__(**{**given, **options})  # `ray.init` gives some of the options too, as None

    with (
        patch.object(parameter, "RayParams", Params),
        raylets_know(ports),
        patch.object(services, "start_api_server", lambda *_, **__: (None, None)),  # as where the start failed
    ):
        yield


@contextmanager
def _signals_left_alone() -> Iterator[None]:
    """Keeps the run's own signal handlers: ray.init makes SIGTERM raise SystemExit, which would look like a crash, and
    Ray's library, below Python's handlers, writes each SIGTERM into the terminal, which displaces a live view."""
    from ray._private import utils

    original = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = original
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def _end_rays_processes() -> None:
    """Ends the processes that Ray leaves when it does not start, or is lost; their own children end with them."""
    for pid, name in children().items():
        if name in RAY_PROCESSES:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _keep_logs(scratch: Path, log_dir: Path | None, dead: str = "") -> str:
    """Copies the logs of Ray's processes, and quotes the newest error in them as the end of a sentence.

    Args:
        log_dir: where the copies go; None: nowhere.
        dead: the process that died, in whose logs alone the error is sought, since the others' errors follow from its
            death; default: in all logs.
    """
    logs = [log for log in ray_logs(scratch) if log.name.startswith(RAY_PROCESSES) and log.stat().st_size]
    if log_dir is not None:
        with suppress(OSError):  # the disk may be full, which may be the cause
            log_dir.mkdir(parents=True, exist_ok=True)
            for log in logs:
                shutil.copy(log, log_dir / f"ray-{log.name}")
    return newest_error(log for log in logs if log.name.startswith(dead))
