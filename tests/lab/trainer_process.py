"""The trainer in a process of its own, and made-up responses to train on."""

from __future__ import annotations

import dataclasses
import multiprocessing
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.multiprocessing import start_processes

from sat_slime.config.schema import LabConfig
from sat_slime.lab.responses import Response

TINY = {
    "model": {"hidden_size": 32, "attention_heads": 4, "kv_heads": 2, "head_dim": 8, "experts": 4, "ffn_size": 32},
    # A large epsilon: Adam would turn rounding in a vanishing gradient into a step of the learning rate.
    "train": {"tokens_per_microbatch": 220, "lr": 1e-2, "adam_eps": 1e-3},
    "diagnose": {"split_every_n_steps": 1},
}


def make_config(**sections) -> LabConfig:
    merged = {**TINY, **{k: {**TINY.get(k, {}), **v} for k, v in sections.items()}}
    return LabConfig(**merged)


def make_samples(config: LabConfig, count: int = 24, routed: bool = True) -> list[Response]:
    """Responses of 3 to 21 tokens with made-up log-probs and routes."""
    rng = np.random.default_rng(3)
    model, task = config.model, config.task
    samples = []
    for i, problem in enumerate(task.training_problems(count, rng)):
        output = task.encode(task.demonstration(problem, rng, 0.3, direct=i % 4 == 0))
        prompt = task.encode(problem.prompt)
        rows = len(prompt) + len(output) - 1
        routes = np.stack([rng.permutation(model.experts)[: model.experts_per_token] for _ in range(rows * 2)])
        response = Response(
            request_id=str(i),
            prompt_ids=prompt,
            output_ids=output,
            log_probs=(-2.7 + 0.3 * rng.standard_normal(len(output))).astype(np.float32),
            routed_experts=routes.reshape(rows, 2, -1).astype(np.uint8) if routed else None,
            finish_reason="stop",
            versions=np.zeros(len(output), np.int64),
        )
        advantage = float(rng.standard_normal())
        samples.append(dataclasses.replace(response, reward=float(i % 3 == 0), advantage=advantage))
    return samples


def in_trainer(worker, config: LabConfig, *arguments):
    """Return what worker(trainer, *arguments) returns in a process of its own, where the trainer is."""
    with tempfile.TemporaryDirectory() as folder:
        # One server process imports Megatron, the others fork from it.
        multiprocessing.set_forkserver_preload(["sat_slime.lab.trainer"])
        start_processes(_enter, (worker, config, folder, arguments), nprocs=1, start_method="forkserver")
        return torch.load(f"{folder}/found.pt", weights_only=False)  # the process just wrote it


def _enter(_, worker, config, folder, arguments):
    from sat_slime.lab.trainer import Trainer

    torch.manual_seed(4)  # of the weights that `make_initial` writes
    torch.save(worker(Trainer(config), *arguments), f"{folder}/found.pt")


@torch.no_grad()
def scored(trainer, responses, replay: bool) -> np.ndarray:
    """log pi of each token of the responses, in their order, under the trainer's weights."""
    micros = trainer._microbatches(responses)
    return torch.cat([trainer.log_probs(trainer.model, micro, replay=replay) for micro in micros]).numpy()


def make_initial(trainer, folder: str) -> dict:
    trainer.export_weights(Path(folder))
    return {}
