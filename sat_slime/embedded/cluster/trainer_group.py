"""The trainer's ranks as Ray's actors, and the warm-up of the initial model as a task of Ray's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded.cluster.ray_environment import ray
from sat_slime.embedded.cluster.results import ActorFailure, wait_all
from sat_slime.embedded.rollout_batch import RolloutBatch, StepResult
from sat_slime.rollout.types import Response


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
        from sat_slime.embedded.trainer.rank import TrainerRank

        self.trainer = TrainerRank(config, rank, f"file://{meeting_point}")

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self.trainer, method)(*arguments, **keywords)


def _warm_up(config: EmbeddedConfig, folder: Path, meeting_point: Path, log_dir: Path) -> Iterator[int]:
    """Makes the initial model in this process; meeting_point: a file that torch.distributed makes. Yields steps."""
    _log_to(log_dir / "warm-up.log")
    from sat_slime.embedded.trainer.warmup import warm_up

    yield from warm_up(config, folder, f"file://{meeting_point}")


def warm_up_model(
    config: EmbeddedConfig, folder: Path, scratch: Path, log_dir: Path, progress: Callable[[int], None]
) -> None:
    """Makes the initial model in a process of its own. progress: is given the number of steps made, now and then."""
    warm_up: Any = ray.remote(_warm_up).options(num_cpus=1, max_retries=0, num_returns="streaming")
    for steps in warm_up.remote(config, folder, scratch / "warm-up", log_dir):
        progress(wait_all([steps], "warm-up")[0])


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
        """Starts a method of TrainerRank on all ranks; `wait` takes what this returns."""
        return [rank.call.remote(method, *arguments, **keywords) for rank in self.ranks]

    def wait(self, futures: list[Any]) -> Any:
        """Waits for all ranks; returns what rank 0 returned."""
        return wait_all(futures, "trainer rank")[0]

    def score(self, responses: Sequence[Response]) -> np.ndarray:
        """Return (tokens,) log pi of responses in their order, without the temperature of the rollout."""
        shares = wait_all(self.start("score", responses, replay=False, temperature=1.0), "trainer rank")
        scores = {name: values for share in shares for name, values in share.items()}
        return np.concatenate([scores[response.request_id] for response in responses])

    def train(self, batch: RolloutBatch, dump: bool = False) -> list[StepResult]:
        """Trains on a batch, which is sent once for all ranks. dump: also return the tokens' columns."""
        return self.wait(self.start_train(batch, dump))

    def start_train(self, batch: RolloutBatch, dump: bool = False) -> list[Any]:
        """Starts training on a batch; `wait` takes what this returns. dump: as in `train`."""
        return self.start("train", ray.put(batch.graded()), dump)
