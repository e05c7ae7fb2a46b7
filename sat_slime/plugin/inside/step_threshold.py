"""The threshold of a method's judge over a whole optimizer step (scope `step`), such as SAT's quantile: over all
micro-batches, all data- and context-parallel ranks.

It needs log pi of every token before the first micro-batch is trained. With denominator `rollout` slime makes that
forward pass anyway, to recompute `log_probs` under the current weights, unless --use-rollout-logprobs spares it. So
that flag is left out, and scope `step` costs this one forward pass. With denominator `checkpoint` slime's pass is under
the generating weights, and one more is made here. The threshold is exact as far as a forward pass is repeatable.
"""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from sat_slime.objective import Method, threshold_scores
from sat_slime.plugin.inside.response_facts import ResponseFacts
from sat_slime.plugin.inside.settings import plugin_method


@torch.no_grad()
def of_batch(
    args: Namespace, rollout_data: dict[str, Any], responses: ResponseFacts, actor: Any = None
) -> Tensor | None:
    """Return the threshold of the step that a batch is for, 0-dim; None where each micro-batch takes its own, and on
    all pipeline stages but the last. Called when all forward passes of slime are done and the model holds the weights
    in training.

    Args:
        rollout_data: responses of this data-parallel rank, with the log-probs of its context-parallel rank.
        responses: what the method reads of them.
        actor: slime's MegatronTrainRayActor, for a forward pass of our own where slime made none.

    Raises:
        RuntimeError: such a pass is needed, and no actor is there.
    """
    method = plugin_method(args)
    if not method.threshold_is_of_the_step:
        return None
    assert method.judge, "it has a threshold"
    log_probs = rollout_data.get("log_probs") if method.denominator in ("rollout", "a3po") else None
    if log_probs is None:
        log_probs = _forward(args, method, rollout_data, actor)

    from megatron.core import mpu

    if not mpu.is_pipeline_last_stage():
        return None

    from sat_slime.plugin.inside.micro_batch import context_group, token_batch  # imports slime

    tokens, d = token_batch(method, rollout_data, log_probs, responses)
    scores = threshold_scores(method, tokens, group=context_group(), d=d)
    return method.judge.threshold_of(scores, mpu.get_data_parallel_group(with_context_parallel=True))


def _forward(args: Namespace, method: Method, rollout_data: dict[str, Any], actor: Any) -> list[Tensor]:
    """Return log pi of every response under the weights in training, by a forward pass of our own; [] on all pipeline
    stages but the last."""
    if actor is None:
        assert method.judge, "it has a threshold"
        raise RuntimeError(
            f"{method.judge.name}.scope is step, but slime made no forward pass under the weights in training: leave "
            "out --use-rollout-logprobs, or add --custom-megatron-init-path sat_slime.plugin.train_hooks.install, so "
            "that one can be made"
        )
    from slime.backends.megatron_utils.data import get_data_iterator

    replays = getattr(args, "use_rollout_routing_replay", False)
    if replays:
        os.environ["ROUTING_REPLAY_STAGE"] = "replay_forward"
    scored = actor.compute_log_prob(
        get_data_iterator(rollout_data), rollout_data["num_microbatches"], store_prefix="training_"
    )
    if replays:
        from slime.utils.routing_replay import RoutingReplay

        RoutingReplay.clear_all_forward()
    return scored.get("training_log_probs", [])
