"""The run's Ray actors: trainer ranks and rollout engines, on a Ray of their own that ends with the run."""

from __future__ import annotations

import functools
import logging
import os
import re
import secrets
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sat_slime.rollout.ray_start import PATIENCE, RayNotStarted, free_ports, load_remark

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # no cluster: all of Ray's servers then bind to 127.0.0.1
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 would starve trainer and servers beside anything else
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # actors see the GPUs; ranks pick theirs by number
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update({**PATIENCE, **os.environ})
# Who can talk to Ray can have it run anything, so it asks for a token. Of this run, and in its environment alone: that
# which Ray makes otherwise lies in a file that everybody may read.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
# Ray reads these as it is imported.
import ray
import torch

from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded import task
from sat_slime.embedded.batch import RolloutBatch, StepResult
from sat_slime.embedded.deaths import RAY_PROCESSES, RayWatch, children
from sat_slime.embedded.engine import GenerationResult, RolloutEngine
from sat_slime.embedded.task import Problem
from sat_slime.rollout.scratch import new_scratch, remove_scratch
from sat_slime.rollout.types import GenerationRequest


class ActorFailure(RuntimeError):
    """A part of the run died or raised; the message says which and why."""


class ActorDied(ActorFailure):
    """The process of a part of the run ended."""


class RayDied(ActorFailure):
    """A process of Ray's own ended, and with it the run."""


PEERS_S = 5.0
"""Seconds after the failure of one rank in which another's death still is the cause: those that talk to a dead rank may
fail before Ray tells of its death."""


@contextmanager
def local_ray(log_dir: Path | None = None, lost: Callable[[RuntimeError], None] | None = None) -> Iterator[Path]:
    """Ray for this run alone, on the loopback interface; it ends with this process, however that ends.

    Yields a scratch folder, which goes away with it.

    Args:
        log_dir: gets the logs of Ray's own processes when one of them dies.
        lost: is told that a process of Ray died, as RayDied or RayNotStarted, from another thread. What it then does
            must end this process: Ray's library hangs, and ends it after a minute. None: nobody watches.

    Raises RayNotStarted.
    """
    folder = new_scratch()
    runs = False

    def died(what: str) -> None:
        _end_rays_processes()  # first: they would write about it into the midst of our lines
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
        with _ports_of_agents_given(), _signals_left_alone():
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
        raise RayNotStarted(f"Ray did not start: {_first_lines(error)}{last}{load_remark()}") from error


@contextmanager
def _ports_of_agents_given() -> Iterator[None]:
    """Ray's raylet gives its agents 15 s to name ports that they choose, and ends without them. Ports that are given it
    does not wait for, but ray.init, unlike `ray start`, takes none."""
    from ray._private import parameter

    original = parameter.RayParams
    agents, http, environments = free_ports(3)
    parameter.RayParams = functools.partial(  # type: ignore[misc, assignment]
        original, metrics_agent_port=agents, dashboard_agent_listen_port=http, runtime_env_agent_port=environments
    )
    try:
        yield
    finally:
        parameter.RayParams = original  # type: ignore[misc]


@contextmanager
def _signals_left_alone() -> Iterator[None]:
    """ray.init makes SIGTERM raise SystemExit, which would look like a crash; a run has handlers of its own."""
    from ray._private import utils

    original = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = original


def _end_rays_processes() -> None:
    """Those that Ray leaves when it does not start, or is lost; their own children end with them."""
    for pid, name in children().items():
        if name in RAY_PROCESSES:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _keep_logs(scratch: Path, log_dir: Path | None, dead: str = "") -> str:
    """Copy the logs of Ray's own processes; the newest error in those of the one that died, or of all, as the end of a
    sentence. The others' errors are of its death."""
    errors: list[tuple[str, str]] = []
    for log in sorted((scratch / "ray").glob("session_*[0-9]/logs/*")):
        if not log.name.startswith(RAY_PROCESSES) or not log.stat().st_size:
            continue
        if log_dir is not None:
            with suppress(OSError):  # of a full disk, which may be the cause
                log_dir.mkdir(parents=True, exist_ok=True)
                shutil.copy(log, log_dir / f"ray-{log.name}")
        if log.name.startswith(dead):
            found = map(_SEVERE.match, log.read_text(errors="replace").splitlines())
            errors += [(error[1], f"; last in {log.name}: {error[0].strip()}") for error in found if error]
    return max(reversed(errors), key=lambda error: error[0], default=("", ""))[1]


_SEVERE = re.compile(r"\s*\[([^]]*) [CEF] .*")
"""A line of an error in Ray's logs, and its time, as text that sorts."""


def wait_all(futures: Sequence[Any], what: str) -> list[Any]:
    """Results of the futures in order; the first failure ends the wait, also while others would wait forever for the
    one that died.

    Raises:
        ActorFailure: names `what`, the index and the cause.
    """
    waiting = list(futures)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1)
        result_among(done[0], futures, what)
    return ray.get(list(futures))


def result_among(future: Any, futures: Sequence[Any], what: str) -> Any:
    """The result of one of the futures. When it failed since another's process died, that one is blamed.

    Raises ActorFailure, as `wait_all`.
    """
    try:
        return result_of(future, f"{what} {futures.index(future)}")
    except ActorDied:
        raise
    except ActorFailure:
        _blame_the_dead([other for other in futures if other is not future], futures, what)
        raise


def _blame_the_dead(waiting: list[Any], futures: Sequence[Any], what: str) -> None:
    """Raises ActorDied when one of those waited for died."""
    deadline = time.monotonic() + PEERS_S
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
        if not done:
            return
        try:
            result_of(done[0], f"{what} {futures.index(done[0])}")
        except ActorDied:
            raise
        except ActorFailure:
            continue


def wait_any(futures: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
    """Those of the futures that have a result or failed: at least one, unless the time is up before."""
    return ray.wait(list(futures), num_returns=1, timeout=timeout_s)[0] if futures else []


def result_of(future: Any, who: str) -> Any:
    """The result of a future, waited for.

    Raises:
        ActorFailure: names `who` and the cause.
    """
    try:
        return ray.get(future)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        raise ActorFailure(f"{who}: {type(cause).__name__}: {cause}") from error
    except ray.exceptions.ActorDiedError as error:
        raise _end_of(who, error) from error
    except ray.exceptions.RayError as error:
        raise ActorDied(f"{who} died: {_first_lines(error)}") from error


def _end_of(who: str, error: ray.exceptions.ActorDiedError) -> ActorFailure:
    """What Ray says at length, in a sentence."""
    text = str(error)
    if error.actor_init_failed:
        return ActorFailure(f"{who} did not start: {text.strip().splitlines()[-1]}")
    if low := re.search(r".*running low on memory.*", text):
        return ActorDied(f"{who} died: {low[0].strip()}")
    process = re.search(r"\tpid: (\d+)", text)
    return ActorDied(f"{who} died: its process{f' {process[1]}' if process else ''} was killed or crashed")


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])


def _log_to(path: Path) -> None:
    """Sends this process's output to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


class _Rank:
    """A trainer rank in its actor. The driver knows it by this class, so that only the actors import Megatron."""

    def __init__(self, config: EmbeddedConfig, rank: int, meeting_point: Path, log_dir: Path) -> None:
        _log_to(log_dir / f"rank-{rank}.log")
        from sat_slime.embedded.trainer import TrainerRank

        self.trainer = TrainerRank(config, rank, f"file://{meeting_point}")

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self.trainer, method)(*arguments, **keywords)


def _warm_up(config: EmbeddedConfig, folder: Path, meeting_point: Path, log_dir: Path) -> None:
    _log_to(log_dir / "warm-up.log")
    from sat_slime.embedded.warmup import warm_up

    warm_up(config, folder, f"file://{meeting_point}")


def warm_up_model(config: EmbeddedConfig, folder: Path, scratch: Path, log_dir: Path) -> None:
    """Makes the initial model in a process of its own."""
    warm_up = ray.remote(_warm_up).options(num_cpus=1, max_retries=0)
    wait_all([warm_up.remote(config, folder, scratch / "warm-up", log_dir)], "warm-up")


class TrainerGroup:
    """All ranks of the trainer; every method runs on all of them and returns what rank 0 returned."""

    def __init__(self, config: EmbeddedConfig, scratch: Path, log_dir: Path) -> None:
        """scratch: where the ranks meet."""
        gpus = torch.cuda.device_count()
        if 0 < gpus < config.train.world_size:
            raise ActorFailure(
                f"train.tensor_parallel x train.data_parallel is {config.train.world_size} ranks, more than the {gpus} "
                "GPUs, and NCCL wants one for each: use fewer ranks, or CUDA_VISIBLE_DEVICES= to run on the CPU"
            )
        rank_class = ray.remote(_Rank).options(num_cpus=0)
        self.ranks: list[Any] = [
            rank_class.remote(config, rank, scratch / "ranks", log_dir) for rank in range(config.train.world_size)
        ]

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Runs a method of TrainerRank on all ranks and waits."""
        return self.wait(self.start(method, *arguments, **keywords))

    def start(self, method: str, *arguments: Any, **keywords: Any) -> list[Any]:
        """Like `call`, without waiting."""
        return [rank.call.remote(method, *arguments, **keywords) for rank in self.ranks]

    def wait(self, futures: list[Any]) -> Any:
        return wait_all(futures, "trainer rank")[0]

    def train(self, batch: RolloutBatch, dump: bool = False) -> list[StepResult]:
        """Trains on a batch; sent once, however many ranks there are. dump: also return the tokens' columns."""
        return self.wait(self.start_train(batch, dump))

    def start_train(self, batch: RolloutBatch, dump: bool = False) -> list[Any]:
        """Like `train`, without waiting."""
        return self.start("train", ray.put(batch.samples()), dump)


def faults_of(results: Sequence[GenerationResult]) -> dict[str, int]:
    """Counts of rejected, lost and resent responses."""
    faults = Counter({"rejected": 0, "lost": 0, "resent": 0})
    for result in results:
        faults.update({name: result.stats[name] for name in ("lost", "resent")})
        faults["rejected"] += sum(result.stats["rejected"].values())
        faults.update({f"rejected/{reason}": count for reason, count in result.stats["rejected"].items()})
    return dict(faults)


def groups_in_flight(config: EmbeddedConfig) -> int:
    """Groups that a stream has in generation at most: as many as the servers decode side by side. 0 without streams."""
    if config.pipeline.mode != "streaming":
        return 0
    decoded = config.rollout.engines * config.rollout.max_running_requests // config.rollout.samples_per_prompt
    return max(1, min(decoded, config.pipeline.queue_prompts))


class EngineGroup:
    """All rollout engines; they share each batch by whole problems."""

    def __init__(self, config: EmbeddedConfig, model_path: Path, log_dir: Path) -> None:
        # Each group of a stream is a call of its own.
        engine_class = ray.remote(RolloutEngine).options(num_cpus=0, max_concurrency=8 + groups_in_flight(config))
        self.engines: list[Any] = [
            engine_class.remote(index, config.rollout, config.model, task.VOCAB_SIZE, str(model_path), str(log_dir))
            for index in range(config.rollout.engines)
        ]
        self._restarts_told = 0

    def start(self) -> None:
        """Starts all servers and waits until they are healthy."""
        self._call("start")

    def update_weights(self, folder: Path, version: int) -> None:
        """Gives all engines new weights: after what `generate` has in flight, in the middle of what `stream` has."""
        self._call("update_weights", str(folder), version)

    def stop(self) -> None:
        """Stops all servers."""
        self._call("stop")

    def states(self) -> str:
        """States of the engines, in words."""
        states = self._call("status")
        return ", ".join(
            state["state"] + (f" ({state['restarts']} restarts)" if state["restarts"] else "") for state in states
        )

    def new_restarts(self) -> int:
        """Restarts of servers since this was asked last. They belong to a server and not to one of the calls that it
        answers side by side, each of which would count them; and a server is restarted between calls too."""
        restarts = sum(state["restarts"] for state in self._call("status"))
        new, self._restarts_told = restarts - self._restarts_told, restarts
        return new

    def new_deaths(self) -> list[str]:
        """Why servers were restarted, a sentence each, since this was asked last."""
        return [death for deaths in self._call("new_deaths") for death in deaths]

    def generate(self, requests: list[GenerationRequest], group: int) -> list[Any]:
        """Starts generation; `collect` takes what this returns.

        Args:
            group: requests of one problem, which stand in a row and stay on one engine.
        """
        shares = self._shares(len(requests) // group)
        return [
            engine.generate.remote(requests[first * group : last * group])
            for engine, (first, last) in zip(self.engines, shares, strict=True)
        ]

    def stream(self, index: int, requests: list[GenerationRequest]) -> Any:
        """Starts generation of one problem's responses, which new weights do not wait for; its result is a
        GenerationResult. `index` numbers the groups, which the engines take in turn."""
        return self.engines[index % len(self.engines)].stream.remote(requests)

    def collect(self, futures: list[Any], iteration: int, problems: list[Problem]) -> RolloutBatch:
        """Waits for a batch."""
        results = wait_all(futures, "rollout engine")
        return RolloutBatch(
            iteration,
            problems,
            [response for result in results for response in result.responses],
            seconds=max(result.stats["seconds"] for result in results),
            faults=faults_of(results),
        )

    def _shares(self, problems: int) -> list[tuple[int, int]]:
        count = len(self.engines)
        return [(i * problems // count, (i + 1) * problems // count) for i in range(count)]

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        return wait_all([getattr(engine, method).remote(*arguments) for engine in self.engines], "rollout engine")
