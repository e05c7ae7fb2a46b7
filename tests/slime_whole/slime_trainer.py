"""Runs slime's trainer on a rollout batch, without Ray: `python slime_trainer.py FOLDER`, with a CPU run's environment.

FOLDER/cases.json has for each case a folder, the numbers of ranks and steps, and slime's flags; FOLDER/batch.json has
the samples. Each case leaves metrics.jsonl, as a run does, its weights in `trained`, and in canary.npy what the canary
scores under them. The arguments, the conversion of samples, the trainer, its optimizer and its loss are those of a run;
this module answers for Ray.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from slime.ray.rollout import RolloutManager
from slime.utils.types import Sample

from sat_slime.plugin import driver, rollout_hooks
from sat_slime.plugin.actor import SatTrainRayActor
from sat_slime.plugin.canary import score_canary
from sat_slime.plugin.driver import parse_arguments

SIDE_BY_SIDE = 2
"""Number of ranks that work at a time; a case with more ranks works alone."""


def main(folder: Path) -> None:
    """Trains all cases, some side by side; the first one that fails ends all."""
    context = multiprocessing.get_context("fork")
    ranks: list[Any] = []
    for case in json.loads((folder / "cases.json").read_text()):
        while ranks and len(ranks) + case["ranks"] > SIDE_BY_SIDE:
            wait_for_one_of(ranks)
        port = free_port()
        for rank in range(case["ranks"]):
            arguments = (case, rank, port, folder / "batch.json")
            ranks.append(context.Process(target=train, args=arguments, name=case["folder"]))
            ranks[-1].start()
    while ranks:
        wait_for_one_of(ranks)


def wait_for_one_of(ranks: list[Any]) -> None:
    """Waits until a rank has ended, and takes the ranks that have out of the list. Ranks are processes that are named
    after the folder of their case.

    If a rank failed, ends the others and raises SystemExit with what it said last."""
    wait([rank.sentinel for rank in ranks])
    for rank in [rank for rank in ranks if rank.exitcode is not None]:
        ranks.remove(rank)
        if rank.exitcode:
            for other in ranks:
                other.kill()
            logs = "".join(log.read_text()[-3000:] for log in Path(rank.name).glob("rank-*.log"))
            raise SystemExit(f"{rank.name} exited with {rank.exitcode}\n{logs}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train(case: dict, rank: int, port: int, batch: Path) -> None:
    """Trains as one rank of a case."""
    log = os.open(Path(case["folder"]) / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    ray.get_gpu_ids = lambda: [0]
    ray.put = ray.get = lambda value: value
    sys.argv = ["driver", *case["flags"]]
    args, _ = parse_arguments()
    driver.take_over(args)
    if args.use_routing_replay:
        os.environ["ENABLE_ROUTING_REPLAY"] = "1"  # slime sets it for its trainers' processes

    trainer = SatTrainRayActor(case["ranks"], rank, "127.0.0.1", port)
    trainer.init(args, "actor", with_ref=args.use_kl_loss)
    trainer.pushed = 0  # a push to engines does so
    for step in range(case["steps"]):
        trainer.train(step, as_generated(args, trainer.train_parallel_config, json.loads(batch.read_text())))
    save(args, trainer, Path(case["folder"]) / "trained")
    if (scores := score_canary(trainer)) is not None:
        np.save(Path(case["folder"]) / "canary.npy", scores.log_probs)
    torch.distributed.barrier()
    os._exit(0)  # a normal exit would only wait for slime's groups and threads


def as_generated(args, parallel_config: dict, rows: list[dict]) -> list:
    """The batch as slime's rollout manager hands it to its trainers, our hooks included."""
    samples = [Sample(**row, status=Sample.Status.COMPLETED) for row in rows]
    for sample in samples:
        sample.rollout_routed_experts = torch.tensor(sample.rollout_routed_experts, dtype=torch.int32)
        rollout_hooks.on_sample(args, sample, rollout_id=0)
    rollout_hooks.log_rollout(0, args, samples, {}, 0.0)
    manager = object.__new__(RolloutManager.__ray_metadata__.modified_class)
    manager.args = args
    manager.custom_reward_post_process_func = manager.custom_convert_samples_to_train_data_func = None
    manager.set_train_parallel_config(parallel_config)
    return manager._split_train_data_by_dp(manager._convert_samples_to_train_data(samples))


def save(args, trainer: SatTrainRayActor, folder: Path) -> None:
    """Saves the weights under Hugging Face's names."""
    from slime.backends.megatron_utils.hf_checkpoint_saver import save_hf_model_to_path

    save_hf_model_to_path(args, folder, trainer.model)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
