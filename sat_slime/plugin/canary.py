"""The canary on slime: after a push the trainer scores a few sequences by slime's own forward pass, the driver asks
every engine for the same on its own address, and judges the push. `sat_slime.rollout.canary` has the rule.
"""

from __future__ import annotations

import contextlib
import logging
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import httpx
import numpy as np
import torch

from sat_slime.rollout.canary import Canary, EngineScores, canary_sequences, prefix_length, read_scores, score_payload
from sat_slime.rollout.client import in_words

logger = logging.getLogger(__name__)

NO_CANARY = {
    "offload-train": "the trainer has no weights on its GPUs after a push",
    "prefill-num-servers": "an engine that only prefills or only decodes cannot be asked alone",
    "sglang-config": "its engines may prefill or decode only, and cannot be asked alone",
    "debug-train-only": "there are no engines",
    "debug-rollout-only": "there is no trainer",
}
"""Flags of slime with which no canary can be, and why."""
TIMEOUT_S = 300.0
"""Seconds for an engine's answer. In mode streaming the sequences wait for a place beside what is in generation."""
TOKENS = 128
"""Tokens of a sequence where the model has room for them: half of them, the prefix, fill a page of a prefix cache."""
ROOM = 16
"""Tokens by which a sequence stays below the engines' longest: SGLang keeps a few for itself."""
PREFIX = "canary_"
"""What slime puts before the names of a forward pass's results and time."""


class PushNotTaken(RuntimeError):
    """An engine does not hold the weights that were pushed, and `pipeline.canary` is stop."""


def no_canary(args: Namespace) -> list[str]:
    """Return a line for each of slime's arguments with which there can be no canary."""
    errors = []
    if (getattr(args, "virtual_pipeline_model_parallel_size", None) or 1) > 1:
        errors.append(
            "pipeline stages are interleaved (--num-layers-per-virtual-pipeline-stage, --num-virtual-stages-per-"
            "pipeline-rank or --pipeline-model-parallel-layout), and pipeline.canary is not none: its one micro-batch "
            "cannot pass through them: leave the flag out, or set pipeline.canary to none"
        )
    return errors + [
        f"--{name} is set, and pipeline.canary is not none: {why}: leave the flag out, or set pipeline.canary to none"
        for name, why in NO_CANARY.items()
        if getattr(args, name.replace("-", "_"), None)
    ]


# ----------------------------------------------------------------------------------------------------------- the driver


def arithmetic(args: Namespace) -> str:
    """Return the arithmetic of the less precise of trainer and engines: `float32`, or `bfloat16` for any other."""
    of_engines = getattr(args, "sglang_dtype", None) or "auto"  # bf16 or fp16 with SGLang, for weights of fp32 too
    exact = not getattr(args, "bf16", False) and of_engines in ("float", "float32")
    return "float32" if exact else "bfloat16"


class PushCanary:
    """Judges each push of a run. After a resume the limit is learned anew, since engines start anew."""

    def __init__(self, then: Literal["warn", "stop"], dtype: str = "bfloat16") -> None:
        """then: what follows where an engine does not hold the weights. dtype: as `arithmetic` returns it."""
        self._canary, self._then = Canary(dtype), then

    def check(self, from_ranks: Sequence[Any], engines: Mapping[int, str]) -> dict[str, float]:
        """Return the metrics of a push.

        Args:
            from_ranks: what each of the trainer's ranks returned from the push: `TrainerScores` or None.
            engines: the address of each engine, by its number.

        Raises:
            PushNotTaken: an engine does not hold the weights, or none can be asked, and `then` is `stop`.
        """
        scores = next((scores for scores in from_ranks if scores is not None), None)
        answers: dict[str, EngineScores] = {}
        why = "the trainer has no scores" if scores is None else "there are no engines that take pushes"
        if scores is not None and engines:
            names = {f"rollout engine {number} ({url})": url for number, url in engines.items()}
            with ThreadPoolExecutor(len(engines)) as pool:
                asked = {name: pool.submit(_ask, url, scores.sequences) for name, url in names.items()}
            for name, future in asked.items():
                try:
                    answers[name] = future.result()
                except ValueError as error:  # a dead engine is slime's to replace, and no reason to end a run
                    why = f"no engine gives scores; {name}: {error}"
                    logger.warning("sat_slime: canary: %s is not judged at version %s: %s", name, scores.version, error)
        if scores is not None and answers:
            verdict = self._canary.check(scores.version, scores.log_probs, answers)
            message, metrics = verdict.message if verdict.faults else "", verdict.metrics
        else:  # counts as a push that no engine took
            message = f"canary: the push cannot be checked: {why}: see engines' logs, or set pipeline.canary to none"
            metrics = {"canary/faults": float(max(1, len(engines)))}
        if message and self._then == "stop":
            raise PushNotTaken(f"{message} (pipeline.canary is stop; go on with --resume)")
        if message:
            logger.warning("sat_slime: %s", message)
        return metrics


def _ask(url: str, sequences: Sequence[Sequence[int]]) -> EngineScores:
    """Return the scores of the engine at an address. They are asked for once: a second time its prefix cache would have
    them. Raises ValueError with the reason where it gives none."""
    try:
        with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client:
            answer = client.post(f"{url}/generate", json=score_payload(sequences))
            answer.raise_for_status()
            return read_scores(answer.json(), sequences)
    except httpx.HTTPError as error:
        raise ValueError(in_words(error)) from error


# ---------------------------------------------------------------------------------------------------------- the trainer


class TrainerScores(NamedTuple):
    """The canary under the weights that were pushed."""

    version: int
    """The version under which they were pushed."""
    sequences: list[tuple[int, ...]]
    log_probs: np.ndarray
    """(T,) of the tokens behind the prefixes, sequence by sequence."""


@torch.no_grad()
def score_canary(actor: Any) -> TrainerScores | None:
    """Return the scores under the weights that the model of `actor`, slime's MegatronTrainRayActor, holds, on one rank,
    None on the others. All must call: each data-parallel rank scores all sequences, so that experts meet as in
    training. Routers choose freely."""
    from megatron.core import mpu
    from slime.backends.megatron_utils.cp_utils import all_gather_with_cp
    from slime.backends.megatron_utils.data import get_data_iterator

    args = actor.args
    names = ("max_position_embeddings", "rollout_max_context_len", "sglang_context_length")
    limits = [getattr(actor.hf_config, names[0], None), *(getattr(args, name, None) for name in names)]
    sequences = canary_sequences(args.vocab_size, min([TOKENS, *(limit - ROOM for limit in limits if limit)]))
    n, total, device = len(sequences), len(sequences[0]), next(actor.model[0].parameters()).device
    responses = total - prefix_length(sequences)  # prefixes are prompts
    batch = {
        "tokens": [torch.tensor(sequence, device=device) for sequence in sequences],
        "loss_masks": [torch.ones(responses, dtype=torch.int, device=device)] * n,
        "total_lengths": [total] * n,
        "response_lengths": [responses] * n,
        "micro_batch_indices": [list(range(n))],
    }
    with _as_engines_score(args):
        scored = actor.compute_log_prob(get_data_iterator(batch), [1], store_prefix=PREFIX)
    if not mpu.is_pipeline_last_stage():
        return None
    rows = [all_gather_with_cp(row, total, responses) for row in scored[f"{PREFIX}log_probs"]]
    if mpu.get_tensor_model_parallel_rank() or mpu.get_data_parallel_rank(with_context_parallel=True):
        return None
    return TrainerScores(actor.weight_updater.weight_version, sequences, torch.cat(rows).double().cpu().numpy())


@contextlib.contextmanager
def _as_engines_score(args: Namespace) -> Iterator[None]:
    """Has slime score as an engine scores an input: at temperature 1, without the mask of top-p, and with routers that
    choose experts as without routing replay."""
    known = {name: getattr(args, name) for name in ("rollout_temperature", "rollout_top_p")}
    stage = os.environ.get("ROUTING_REPLAY_STAGE", "fallthrough")
    vars(args).update(dict.fromkeys(known, 1.0))
    os.environ["ROUTING_REPLAY_STAGE"] = "fallthrough"
    try:
        yield
    finally:
        vars(args).update(known)
        os.environ["ROUTING_REPLAY_STAGE"] = stage
