"""The run's Ray actors: trainer ranks and rollout engines, on a Ray of their own that ends with the run."""

from __future__ import annotations

import logging
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # no cluster: all of Ray's servers then bind to 127.0.0.1
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 would starve trainer and servers beside anything else
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # actors see the GPUs; ranks pick theirs by number
os.environ.setdefault("OMP_NUM_THREADS", "1")
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
from sat_slime.embedded.engine import GenerationResult, RolloutEngine
from sat_slime.embedded.task import Problem
from sat_slime.rollout.scratch import new_scratch
from sat_slime.rollout.types import GenerationRequest


class ActorFailure(RuntimeError):
    """A part of the run died or raised; the message says which and why."""


@contextmanager
def local_ray() -> Iterator[Path]:
    """Ray for this run alone, on the loopback interface; it ends with this process, however that ends.

    Yields a scratch folder, which goes away with it.
    """
    folder = new_scratch()
    try:
        # Without the address a RAY_ADDRESS in the environment would put a laptop run onto somebody's cluster.
        ray.init(
            address="local",
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder.path / "ray"),
            num_cpus=os.cpu_count(),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=256 * 2**20,
        )
        yield folder.path
    finally:
        ray.shutdown()
        folder.remove()


def wait_all(futures: Sequence[Any], what: str) -> list[Any]:
    """Results of the futures in order; the first failure ends the wait, also while others would wait forever for the
    one that died.

    Raises:
        ActorFailure: names `what`, the index and the cause.
    """
    waiting = list(futures)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1)
        result_of(done[0], f"{what} {futures.index(done[0])}")
    return ray.get(list(futures))


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
    except ray.exceptions.RayError as error:
        raise ActorFailure(f"{who} died: {_first_lines(error)}") from error


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
    """Counts of rejected, lost and resent responses and of server restarts."""
    faults = Counter({"rejected": 0, "lost": 0, "resent": 0, "restarts": 0})
    for result in results:
        faults.update({name: result.stats[name] for name in ("lost", "resent", "restarts")})
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
