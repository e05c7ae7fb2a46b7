"""The trainer's part of the canary: after a push it scores the fixed sequences by slime's own forward pass."""

from __future__ import annotations

import contextlib
import os
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from megatron.core import mpu

from sat_slime.rollout.canary import canary_sequences, prefix_length

TOKENS = 128
"""Tokens of a sequence where the model has room for them: half of them, the prefix, fill a page of a prefix cache."""
ROOM = 16
"""Tokens by which a sequence stays below the engines' longest: SGLang keeps a few for itself."""
PREFIX = "canary_"
"""What slime puts before the names of a forward pass's results and time."""


@dataclass(frozen=True)
class TrainerScores:
    """The canary under the weights that were pushed."""

    version: int
    """The version under which they were pushed."""
    sequences: list[tuple[int, ...]]
    log_probs: np.ndarray
    """(T,) of the tokens behind the prefixes, sequence by sequence."""
    seconds: float
    """The time that the trainer took."""


@torch.no_grad()
def score_canary(actor: Any) -> TrainerScores | None:
    """Return the scores on one rank, None on the others; all ranks must call, since the model is spread over them.

    Each data-parallel rank scores all sequences, so that experts meet as in training. Routers choose freely.

    Args:
        actor: slime's MegatronTrainRayActor, whose model holds the weights that were pushed.
    """
    from slime.backends.megatron_utils.cp_utils import all_gather_with_cp
    from slime.backends.megatron_utils.data import get_data_iterator

    begun = time.monotonic()
    args = actor.args
    sequences = canary_sequences(args.vocab_size, _length(args, actor.hf_config))
    total, start = len(sequences[0]), prefix_length(sequences)
    batch = _batch(actor, sequences)
    with _as_engines_score(args), _free_routers(args):
        iterator = get_data_iterator(batch)
        scored = actor.compute_log_prob(iterator, batch["num_microbatches"], store_prefix=PREFIX)
    if not mpu.is_pipeline_last_stage():
        return None
    rows = [all_gather_with_cp(row, total, total - start) for row in scored[f"{PREFIX}log_probs"]]
    if mpu.get_tensor_model_parallel_rank() or mpu.get_data_parallel_rank(with_context_parallel=True):
        return None
    log_probs = torch.cat(rows).double().cpu().numpy()
    return TrainerScores(actor.weight_updater.weight_version, sequences, log_probs, time.monotonic() - begun)


def _length(args: Namespace, hf_config: Any) -> int:
    """Return the tokens of a sequence."""
    limits = [
        getattr(args, "max_position_embeddings", None),
        getattr(args, "rollout_max_context_len", None),
        getattr(args, "sglang_context_length", None),
        getattr(hf_config, "max_position_embeddings", None),
    ]
    return min([TOKENS, *(limit - ROOM for limit in limits if limit)])


def _batch(actor: Any, sequences: list[tuple[int, ...]]) -> dict[str, Any]:
    """Return the sequences as slime's trainer has a batch: their prefixes are prompts, the rest responses. With
    interleaved pipeline stages there are as many micro-batches as Megatron wants at a time, else one."""
    device = next(actor.model[0].parameters()).device
    parallel = actor.train_parallel_config
    responses = len(sequences[0]) - prefix_length(sequences)
    parts = parallel["microbatch_group_size_per_vp_stage"] if (parallel["vpp_size"] or 1) > 1 else 1
    n = len(sequences)
    if n % parts:
        raise RuntimeError(
            f"the canary's {n} sequences cannot be split into Megatron's {parts} micro-batches of interleaved pipeline "
            "stages: set pipeline.canary to none"
        )
    return {
        "tokens": [torch.tensor(sequence, device=device) for sequence in sequences],
        "loss_masks": [torch.ones(responses, dtype=torch.int, device=device) for _ in sequences],
        "total_lengths": [len(sequence) for sequence in sequences],
        "response_lengths": [responses] * n,
        "micro_batch_indices": [list(range(i, i + n // parts)) for i in range(0, n, n // parts)],
        "num_microbatches": [parts],
    }


@contextlib.contextmanager
def _as_engines_score(args: Namespace) -> Iterator[None]:
    """Has slime score as an engine scores an input: at temperature 1, without the mask of top-p."""
    known = {name: getattr(args, name) for name in ("rollout_temperature", "rollout_top_p")}
    vars(args).update(dict.fromkeys(known, 1.0))
    try:
        yield
    finally:
        vars(args).update(known)


@contextlib.contextmanager
def _free_routers(args: Namespace) -> Iterator[None]:
    """Has the routers choose experts as without routing replay."""
    if not getattr(args, "use_routing_replay", False):
        yield
        return
    before = os.environ.get("ROUTING_REPLAY_STAGE")
    os.environ["ROUTING_REPLAY_STAGE"] = "fallthrough"
    try:
        yield
    finally:
        if before is None:
            del os.environ["ROUTING_REPLAY_STAGE"]
        else:
            os.environ["ROUTING_REPLAY_STAGE"] = before
