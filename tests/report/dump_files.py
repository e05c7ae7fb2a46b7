"""Dumps for tests: steps of random tokens, as slime and as a lab run write them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import torch

from sat_slime.report.dumps import StepBatch


def rollout(lengths, seed=0, spread=0.2, inactive=0.1, prompt=3):
    """A rollout's columns as slime holds them: a list per column, an entry per response."""
    generator = torch.Generator().manual_seed(seed)

    def normal(n):
        return torch.randn(n, generator=generator)

    columns = {
        "tokens": [torch.arange(prompt + n) for n in lengths],
        "response_lengths": list(lengths),
        "total_lengths": [prompt + n for n in lengths],
        "rewards": [float(i % 2) for i in range(len(lengths))],
        "truncated": [0] * len(lengths),
        "loss_masks": [(torch.rand(n, generator=generator) >= inactive).int() for n in lengths],
        "sample_indices": list(range(len(lengths))),
        "rollout_ids": list(range(len(lengths))),
        "rollout_log_probs": [-normal(n).abs() - 0.05 for n in lengths],
    }
    columns["log_probs"] = [(mu + spread * normal(len(mu))).clamp(max=0) for mu in columns["rollout_log_probs"]]
    columns["advantages"] = [torch.full((n,), float(normal(1))) for n in lengths]
    return columns


def part(columns, which):
    """A data-parallel rank's responses."""
    return {key: [values[i] for i in which] for key, values in columns.items()}


def schedule(per_step):
    """What a rank knows of its micro-batches. per_step: [[responses of each micro-batch] of each optimizer step]."""
    flat = [size for step in per_step for size in step]
    ends = np.cumsum([0, *flat]).tolist()
    return {
        "micro_batch_indices": [list(range(a, b)) for a, b in itertools.pairwise(ends)],
        "num_microbatches": [len(step) for step in per_step],
        "global_batch_sizes": [sum(step) for step in per_step],
    }


def format_2(columns, ranks, rollout_id=0):
    """What slime after 0.3.1 saves. ranks: (partition, responses per micro-batch and step) of each data-parallel
    rank. One that slime wrote is in recorded/."""
    shards, samples = [], []
    for rank, (partition, per_step) in enumerate(ranks):
        mine = part(columns, partition)
        shards.append(
            {"rank": rank, "data_parallel_rank": rank, "sample_indices": mine["sample_indices"], "partition": partition}
            | schedule(per_step)
        )
        for i, position in enumerate(partition):
            own = {key: values[i] for key, values in mine.items() if key != "sample_indices"}
            ids = {"sample_index": mine["sample_indices"][i], "rollout_position": position}
            samples.append({"data_parallel_rank": rank} | ids | own)
    samples.sort(key=lambda sample: sample["rollout_position"])
    head = {"format_version": 2, "rollout_id": rollout_id, "rank": 0}
    return head | {"samples": samples, "dp_shards": shards, "raw_reward": columns["rewards"]}


def rank_file(columns, which, per_step, rank, rollout_id=0):
    """What slime 0.3.1 saves on each rank."""
    data = part(columns, which) | schedule(per_step)
    return {"rollout_id": rollout_id, "rank": rank, "rollout_data": data}


def step_batch(lengths, seed=0, spread=0.2, microbatches=None):
    """The same tokens as a step that has been read."""
    columns = rollout(lengths, seed, spread)
    return StepBatch(
        name="step",
        log_probs=torch.cat(columns["log_probs"]),
        rollout_log_probs=torch.cat(columns["rollout_log_probs"]),
        advantages=torch.cat(columns["advantages"]),
        mask=torch.cat(columns["loss_masks"]).bool(),
        lengths=torch.tensor(lengths),
        microbatches=microbatches or [len(lengths)],
    )


def write_run_dump(run: Path, lengths, iteration=1, seed=0, columns=(), replayed=False, **more):
    """Write a dump of a lab run, of one micro-batch; more: further columns of its tokens, given as functions of their
    number; columns: (tokens,) arrays in place of the random ones."""
    rows = rollout(lengths, seed)
    made = {"lags": np.full(sum(lengths), iteration - 1)}
    made |= {key: of(sum(lengths)) for key, of in more.items()} | dict(columns)
    rows |= {key: torch.from_numpy(np.asarray(values)).split(list(lengths)) for key, values in made.items()}
    path = run / "dumps" / f"{iteration}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    payload = format_2(rows, [(list(range(len(lengths))), [[len(lengths)]])], iteration - 1)
    torch.save({"method": "gspo", "routing_replay": replayed} | payload, path)
    return path
